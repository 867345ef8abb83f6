"""How did each rank end?"""

from __future__ import annotations

import signal

from leakscope.record.kinds import EndKind
from leakscope.record.model import Rank, Run
from leakscope.report.wording.numbers import listed_numbers, plural


def status_text(status: int) -> str:
    """`status 3`, or the signal for 128+n and -n: `SIGKILL`."""
    number = -status if status < 0 else status - 128
    if number > 0:
        try:
            return signal.Signals(number).name
        except ValueError:
            pass
    return f"status {status}"


def ended_text(rank: Rank) -> str:
    """`killed by SIGKILL after 5 steps`."""
    ended = rank.ended
    after = "before its first step" if ended.steps == 0 else f"after {plural(ended.steps, 'step')}"
    if is_hung(rank):
        return f"hung {after}"
    words = {
        "finished": "finished",
        "stopped": "stopped by leakscope",
        "raised": "raised",
        "exited": f"exited with {status_text(ended.status)}",
        "killed": f"killed by {status_text(ended.status)}",
        "lost": "lost without a word",
    }
    if ended.how == EndKind.FINISHED and ended.steps == 0:
        return "finished, no step seen"
    return f"{words.get(ended.how, ended.how)} {after}"


def is_hung(rank: Rank) -> bool:
    """Whether nothing happened any more on a rank that had not ended."""
    return rank.ended.how == EndKind.HUNG


def hung_text(run: Run) -> str:
    """`ranks 0, 2 hung after 7 steps: nothing happened on the wire for 8 s`; "" where no rank did."""
    hung: dict[str, list[Rank]] = {}
    for rank in run.ranks:
        if is_hung(rank):
            hung.setdefault(ended_text(rank), []).append(rank)
    told = []
    for ended, ranks in hung.items():
        why = ranks[0].ended.error.partition(";")[0]
        told.append(
            f"rank{'s' if len(ranks) > 1 else ''} {listed_numbers(tuple(rank.number for rank in ranks))} {ended}: {why}"
        )
    return "; ".join(told)


def error_text(ended: str, error: str) -> str:
    """An error without what `ended` (an `ended_text`) says already; "" where that is all of it."""
    return "" if ended.startswith(error) else error


def ended_badly(rank: Rank) -> bool:
    """Whether a rank ended otherwise than by reaching its end or being told to stop."""
    return rank.ended.how in (EndKind.RAISED, EndKind.HUNG, EndKind.KILLED, EndKind.LOST) or (
        rank.ended.how == EndKind.EXITED and rank.ended.status != 0
    )


def was_text(rank: Rank) -> str:
    """`ended_text` as it follows `it`: `was killed by SIGKILL after 5 steps`."""
    return f"{'was ' if rank.ended.how in ('killed', 'lost', 'stopped') else ''}{ended_text(rank)}"
