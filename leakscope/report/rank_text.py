"""Sentences about how ranks ended, what marks their steps, and what they wait for."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from leakscope.findings.comm import CommState, Unmatched, first_to_fail
from leakscope.report.rendering import cleaned, one_line
from leakscope.run.model import Ended, Rank, Run
from leakscope.run.rows import (
    CommOperation,
    Direction,
    EndKind,
    FinalOperation,
    IssuedOperation,
    OperationState,
    StartedProcess,
    StepsBy,
    StepSourceKind,
)
from leakscope.units import plural, ranks_text

_SIGNALLED = 128
"""Offset of the exit status of a process ended by a signal, as in shells."""
_CTRL_C = _SIGNALLED + signal.SIGINT
_TERMINATED = _SIGNALLED + signal.SIGTERM
_ERROR_SHOWN = 240
"""Characters of the first line of an error that a sentence quotes; the report prints the rest below."""
_HUNG_SHOWN = 3
"""Groups of hung ranks that a sentence lists; heuristic: more make it unreadable."""
_NO_STATUS = "ended without a status (rank and leakscope both gone)"
_PASSIVE = ("killed", "stopped", "terminated")
"""First words that need `was` after a subject."""


def status_text(status: int) -> str:
    """`status 3`, or the signal for 128+n and -n: `SIGKILL`."""
    number = -status if status < 0 else status - _SIGNALLED
    if number > 0:
        try:
            return signal.Signals(number).name
        except ValueError:
            pass
    return f"status {status}"


def ended_text(rank: Rank) -> str:
    """`failed with ValueError: boom (train.py:12) after 5 steps`."""
    ended = rank.ended
    if ended.how == EndKind.FINISHED and ended.steps == 0:
        return "finished, no step detected"
    return f"{_how_ended(ended)} {_after(ended)}{_oom_killer(ended)}"


def _after(ended: Ended) -> str:
    return "before its first step" if ended.steps == 0 else f"after {plural(ended.steps, 'step')}"


def _how_ended(ended: Ended) -> str:
    if is_users_stop(ended):
        return "stopped by you (Ctrl-C)"
    if ended.is_orphan:
        lost = ended.how == EndKind.LOST
        return _NO_STATUS if lost else "terminated because the leakscope process was killed"
    if ended.how == EndKind.KILLED and ended.status == _TERMINATED:
        return "terminated (SIGTERM)"
    if ended.how == EndKind.RAISED:
        return f"failed{_error(ended)}"
    return {
        EndKind.FINISHED: "finished",
        EndKind.STOPPED: "stopped by leakscope",
        EndKind.HUNG: "hung",
        EndKind.EXITED: f"exited with {status_text(ended.status)}",
        EndKind.KILLED: f"killed by {status_text(ended.status)}",
        EndKind.LOST: "ended without a status",
        EndKind.RUNNING: "running",
        EndKind.UNKNOWN: "ended with an unknown status",
    }[ended.how]


def _oom_killer(ended: Ended) -> str:
    """Kills by the OOM killer of the kernel, a possible cause of SIGKILL."""
    if not ended.out_of_memory_kills:
        return ""
    killed = "a process" if ended.out_of_memory_kills == 1 else f"{ended.out_of_memory_kills} processes"
    return f"; the OOM killer of this machine killed {killed} meanwhile"


def _error(ended: Ended) -> str:
    """` with ValueError: boom (train.py:12)`, truncated if long."""
    line = one_line(ended.error.partition("\n")[0])
    if not line:
        return ""
    shown = line if len(line) <= _ERROR_SHOWN else f"{line[:_ERROR_SHOWN].rstrip()}..."
    at = f" ({ended.at.removesuffix(' <module>')})" if ended.at else ""
    return f" with {shown}{at}"


def is_users_stop(ended: Ended) -> bool:
    """Whether Ctrl-C ended it, through KeyboardInterrupt or the signal."""
    return ended.status == _CTRL_C and ended.how in (EndKind.RAISED, EndKind.KILLED, EndKind.EXITED)


def is_hung(rank: Rank) -> bool:
    """Whether the rank hung."""
    return rank.ended.how == EndKind.HUNG


def hung_text(run: Run) -> str:
    """`ranks 0, 2 hung after 7 steps: nothing was sent or received for 8 s`; "" if no rank hung."""
    hung: dict[str, list[Rank]] = {}
    for rank in run.ranks:
        if is_hung(rank):
            hung.setdefault(ended_text(rank), []).append(rank)
    texts = [
        f"{ranks_text(rank.number for rank in ranks)} {ended}: {ranks[0].ended.error.partition(';')[0]}"
        for ended, ranks in list(hung.items())[:_HUNG_SHOWN]
    ]
    rest = sorted(rank.number for ranks in list(hung.values())[_HUNG_SHOWN:] for rank in ranks)
    return "; ".join([*texts, *([f"{ranks_text(rest)} also hung"] if rest else [])])


def within_text(run: Run) -> str:
    """`rank 0: snapshot within an unfinished step (after step 20): read(file) (File "train.py", line 15, in main)`.

    "" if each step of the running ranks had ended.
    """
    texts: dict[str, list[Rank]] = {}
    for rank in run.ranks:
        if rank.ended.how == EndKind.RUNNING and rank.ended.stack:
            step = f"an unfinished step (after step {rank.ended.steps})" if rank.ended.steps else "the first step"
            texts.setdefault(f"snapshot within {step}{_innermost(rank.ended.stack)}", []).append(rank)
    return "; ".join(
        f"{ranks_text(rank.number for rank in ranks)}: {text}" for text, ranks in list(texts.items())[:_HUNG_SHOWN]
    )


def _innermost(stack: Sequence[str]) -> str:
    """Innermost frame of the first thread of a stack dump."""
    end = next((place for place, line in enumerate(stack) if place and not line.startswith(" ")), len(stack))
    frames = [place for place in range(end) if stack[place].startswith("  File ")]
    if not frames:
        return ""
    at, *code = (line.strip() for line in stack[frames[-1] : end])
    return f": {code[0]} ({at})" if code else f": {at}"


def failure_text(run: Run) -> tuple[str, str]:
    """(`Failed`, `The script failed with ValueError: boom (train.py:12) after 4 steps.`) for the first rank to fail.

    `Stopped` if it was interrupted or terminated; ("", "") if no rank failed, or the ranks hung.
    """
    rank = first_to_fail(run)
    if rank is None or is_hung(rank):
        return "", ""
    if is_users_stop(rank.ended):
        return "Stopped", f"Stopped by you (Ctrl-C) {_after(rank.ended)}."
    who = "The script" if len(run.ranks) == 1 else f"Rank {rank.number}"
    log = f" Log: {rank.ended.log}" if rank.ended.log else ""
    stopped = rank.ended.status == _TERMINATED
    return "Stopped" if stopped else "Failed", f"{who} {was_text(rank)}.{log}"


def error_text(rank: Rank) -> str:
    """Error of a rank if `ended_text` does not contain all of it; else ""."""
    error = rank.ended.error
    is_complete = is_users_stop(rank.ended) or rank.ended.how in (EndKind.KILLED, EndKind.LOST)
    return "" if is_complete or error in ended_text(rank) else error


def ended_badly(rank: Rank) -> bool:
    """Whether a rank neither finished nor was stopped by leakscope."""
    return rank.ended.how in (EndKind.RAISED, EndKind.HUNG, EndKind.KILLED, EndKind.LOST) or (
        rank.ended.how == EndKind.EXITED and rank.ended.status != 0
    )


def was_text(rank: Rank) -> str:
    """`ended_text` after a subject: `was killed by SIGKILL after 5 steps`."""
    return _was(ended_text(rank))


def cut_short_text(ended: Ended) -> str:
    """An early end after a subject: `was terminated (SIGTERM) after 7 steps`."""
    return _was(f"{_how_ended(ended)} {_after(ended)}")


def _was(text: str) -> str:
    return f"was {text}" if text.startswith(_PASSIVE) else text


def clock_text(run: Run) -> str:
    """`by Adam.step`, of the first rank with steps; "" if unknown."""
    clock = next((rank.step_source for rank in run.ranks if rank.steps and rank.step_source is not None), None)
    return "" if clock is None else _clock_named(clock) + (f" from step {clock.since + 1}" if clock.since else "")


def _clock_named(clock: StepsBy) -> str:
    name = cleaned(clock.name)
    return {
        StepSourceKind.MARK: "as marked by leakscope.Profiler",
        StepSourceKind.FUNCTION: f"by {name}()",
        StepSourceKind.OPTIMIZER: f"by {name}.step",
        StepSourceKind.BACKWARD: "by backward",
        StepSourceKind.CALL: f"by calls of {name}",
    }[clock.clock]


def processes_text(processes: Sequence[StartedProcess]) -> str:
    """`2 processes (torch.multiprocessing.spawn at train.py:41)`."""
    first = processes[0]
    where = f" at {first.started_at.split(' ')[0]}" if first.started_at else ""
    count = f"{len(processes)} processes" if len(processes) > 1 else "a process"
    return cleaned(f"{count} ({first.through}{where})")


_CYCLE_SHOWN = 4
"""Ranks of a deadlock that a sentence lists with their operations; heuristic: more make it unreadable."""
_DOING: Mapping[OperationState, str] = {
    OperationState.ISSUED: "issued, not awaited",
    OperationState.WAITS: "waiting",
    OperationState.WAITED: "done",
    OperationState.FAILED: "failed",
}


def operation_name(operation: CommOperation) -> str:
    """`recv from 1 tag 3`; of a receive from any rank the rank that sent it."""
    peer = operation.source if operation.peer is None else operation.peer
    towards = "" if peer is None else f" {'from' if 'recv' in operation.direction else 'to'} {peer}"
    tag = "" if operation.tag is None else f" tag {operation.tag}"
    return cleaned(one_line(f"{operation.direction}{towards}{tag}"))


def operation_text(operation: IssuedOperation) -> str:
    """`recv #12 from rank 0, tag 3 (number 2 of step 4, at train.py:40 forward)`."""
    direction, peer = operation.direction, operation.peer
    towards = ""
    if direction in (Direction.SEND, Direction.RECV):
        to = "to" if direction == Direction.SEND else "from"
        towards = " from any rank" if peer is None else f" {to} rank {peer}"
    tagged = f", tag {operation.tag}" if operation.tag else ""
    at = f", at {operation.issued_at}" if operation.issued_at else ""
    when = f"(number {operation.microbatch + 1} of step {operation.step}{at})"
    return f"{direction} #{operation.nth}{towards}{tagged} {when}"


def last_operation_text(operation: FinalOperation) -> str:
    """`recv #12 from rank 0 (number 2 of step 4), waiting`."""
    return f"{operation_text(operation)}, {_DOING[operation.state]}"


def comm_notes(state: CommState) -> tuple[str, ...]:
    """The last operation of a rank, the ranks it waited for, and operations without a match."""
    notes = []
    if state.last is not None:
        notes.append(f"last operation: {last_operation_text(state.last)}")
    if state.missing is not None:
        operation, ranks = state.missing.operation, state.missing.ranks
        notes.append(
            f"in {operation.direction} #{operation.nth} of group {operation.group}, which {ranks_text(ranks)} never "
            "joined"
        )
    return (*notes, *map(_unmatched_text, state.unmatched))


def _unmatched_text(lost: Unmatched) -> str:
    verb = "received" if lost.direction == Direction.SEND else "sent"
    more = f" and {lost.missing - 1} after it" if lost.missing > 1 else ""
    answer = f"rank {lost.peer} sent and received nothing"
    if lost.answer is not None:
        answer = f"last operation of rank {lost.peer}: {last_operation_text(lost.answer)}"
    return f"never {verb} by rank {lost.peer}: {operation_text(lost.first)}{more}; {answer}"


def deadlock_text(run: Run, cycle: Sequence[int]) -> str:
    """`rank 1 in recv #2 from rank 2 (number 1 of step 2, at train.py:40 forward), rank 2 in ...`."""
    ranks = [
        f"rank {rank.number} in {operation_text(rank.final_operation)}"
        for rank in run.ranks
        if rank.number in cycle and rank.final_operation is not None
    ]
    return ", ".join(ranks[:_CYCLE_SHOWN]) + (
        f" and {len(ranks) - _CYCLE_SHOWN} more" if len(ranks) > _CYCLE_SHOWN else ""
    )
