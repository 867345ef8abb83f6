"""Which ranks of a run go on, and what has each of them answered?"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.errors import Unreadable
from leakscope.files import parse_json
from leakscope.originals import Path, os, time
from leakscope.record.about import is_told
from leakscope.record.ends import ended_file, rank_name, ranks_in
from leakscope.record.header import read_header
from leakscope.record.kinds import EndKind
from leakscope.record.live.process import RecordingProcess, read_process
from leakscope.record.model import Ended
from leakscope.record.parts.elsewhere import ranks_elsewhere
from leakscope.record.rows.answer import Answer
from leakscope.record.rows.row import from_json

_LATELY_S = 600.0
"""Seconds, chosen, in which a rank of another machine that goes on has written something."""
_TAIL_BYTES = 1 << 16
"""Bytes at the end of a file that are read, chosen: some hundred lines, however long the run."""


@dataclass(frozen=True)
class LiveRank:
    """One rank that may be asked."""

    number: int
    process: RecordingProcess | None
    """None where it does not record yet."""
    ended: bool
    """It has said how it ended, or its process is gone."""
    answer: Answer | None
    """The latest."""

    def has_answered(self, asked: int) -> bool:
        """Whether what was asked by this number is answered, or never will be."""
        return self.ended or (self.answer is not None and self.answer.asked >= asked)


def live_ranks(folder: Path) -> tuple[LiveRank, ...]:
    """All ranks of a run, those too that have left nothing yet; none of other machines, where those have a folder of
    their own. Raises Unreadable where it is no run.
    """
    header = read_header(folder)
    told, there = header.get("ranks"), ranks_in(folder)
    expected = told if type(told) is int and 0 < told <= _MOST else 1
    numbers = {*there, *range(expected)}.difference(ranks_elsewhere(folder, header, expected, there))
    over = is_told(header)
    return tuple(_rank(folder / rank_name(number), number, over) for number in sorted(numbers))


_MOST = 1 << 12
"""Ranks that are asked one by one; chosen."""


def _rank(path: Path, number: int, over: bool) -> LiveRank:
    process = read_process(path)
    gone = process is not None and process.is_running() is False
    return LiveRank(number, process, over or gone or ended_file(path).exists(), last_answer(path))


def last_answer(rank: Path) -> Answer | None:
    """What the rank with this folder answered last."""
    for line in reversed(tail_of(rank / f"{Answer.FILE}.jsonl", 8)):
        try:
            return from_json(Answer, parse_json(line))
        except (Unreadable, ValueError):  # a line that is being written
            continue
    return None


def goes_on(rank: Path) -> bool:
    """Whether the rank with this folder, which says nothing of its end, has none; for one of another machine whether it
    was heard of lately.
    """
    process = read_process(rank)
    running = None if process is None else process.is_running()
    return process is not None and (_heard_lately(rank) if running is None else running)


def _heard_lately(rank: Path) -> bool:
    try:
        return time.time() - max(path.stat().st_mtime for path in rank.iterdir()) < _LATELY_S
    except (OSError, ValueError):
        return False


def running(rank: Path, steps: int) -> Ended:
    """In place of the end of a rank that goes on; with the stacks of its threads where it was asked within a step."""
    answer = last_answer(rank)
    stacks = answer.stacks if answer is not None and answer.step == steps else ()
    return Ended(EndKind.RUNNING, 0, steps, stack=stacks)


def is_over(ranks: Sequence[LiveRank]) -> bool:
    """Whether there is nobody left to answer."""
    return all(rank.ended for rank in ranks)


def tail_of(path: Path, most: int, size: int = _TAIL_BYTES) -> Sequence[bytes]:
    """The last whole lines of a file, so many at most, of what stands in so many bytes at its end; none without it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        end = os.fstat(file).st_size
        begin = max(end - size, 0)
        data = os.pread(file, end - begin, begin)
    except OSError:
        return ()
    finally:
        os.close(file)
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
    return tuple(deque(lines[1:] if begin else lines, most))
