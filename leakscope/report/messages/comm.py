"""Sentences about P2P and collective operations: buffers and ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakscope.findings.comm import CommState, Unmatched, buffers_text
from leakscope.findings.facts import CommBuffers
from leakscope.run.model import Run
from leakscope.run.rows import Direction, FinalOperation, IssuedOperation, OperationState
from leakscope.units import bytes_text, plural, ranks_text

_CYCLE_TOLD = 4
"""Ranks of a deadlock that a sentence lists with their operations; heuristic: more make it unreadable."""
_DOING: Mapping[OperationState, str] = {
    OperationState.ISSUED: "issued, not awaited",
    OperationState.WAITS: "waiting",
    OperationState.WAITED: "done",
    OperationState.FAILED: "failed",
}


def holder_to_blame(buffers: CommBuffers) -> str:
    """One sentence about communication buffers that the cut reference retains."""
    dead = "their" if buffers.dead == buffers.count else f"{buffers.dead} of the"
    weak = f"; {dead} Python tensors are dead, but their storages are alive" if buffers.dead else ""
    return (
        f" It includes {plural(buffers.count, 'communication buffer')} ({bytes_text(buffers.bytes)}: "
        f"{buffers_text(buffers)}{weak}), retained by this reference and not by a pending operation."
    )


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
    return ", ".join(ranks[:_CYCLE_TOLD]) + (
        f" and {len(ranks) - _CYCLE_TOLD} more" if len(ranks) > _CYCLE_TOLD else ""
    )
