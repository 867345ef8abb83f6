"""Sentences about P2P and collective operations: their buffers, who waited for whom, contexts of distributed
autograd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakscope.findings.comm import CONTEXT, CommState, DroppedFacts, EmptyContextsFacts, OpenPassesFacts, Unmatched
from leakscope.findings.facts import BufferKind, CommBuffers, OpenContextsFacts
from leakscope.findings.model import Finding
from leakscope.findings.rules.p2p_buffer import BufferFacts, HeldBy
from leakscope.run.kinds import Direction, OperationState
from leakscope.run.model import Run
from leakscope.run.rows_device import FinalOperation, IssuedOperation
from leakscope.units import bytes_text, ranks_text

_KINDS_TOLD = 2
"""Kinds of operations at the most, chosen, that a sentence names."""
_PLACES_TOLD = 3
"""Places at the most, chosen, that a sentence names."""
_CYCLE_TOLD = 4
"""Ranks of a deadlock that are told with their operations."""
_DOING: Mapping[OperationState, str] = {
    OperationState.ISSUED: "issued, not waited for",
    OperationState.WAITS: "still waiting",
    OperationState.WAITED: "done",
    OperationState.FAILED: "failed",
}


def buffer_kind_text(kind: BufferKind) -> str:
    """`received from rank 0, tag 0, at train.py:41 forward`."""
    at = f", at {kind.issued_at}" if kind.issued_at else ""
    if kind.direction == CONTEXT:
        return f"gradients of a context of worker {kind.peer}{at}"
    if kind.direction not in ("send", "recv"):
        return f"of {kind.direction}{at}"
    verb = "sent to" if kind.direction == "send" else "received from"
    peer = "any rank" if kind.peer is None else f"rank {kind.peer}"
    return f"{verb} {peer}{f', tag {kind.tag}' if kind.tag else ''}{at}"


def buffers_text(buffers: CommBuffers) -> str:
    """`128 sent to rank 1, tag 0, at train.py:28 step`: the commonest kinds of buffers, and how many more."""
    kinds = buffers.kinds
    more = f", and {len(kinds) - _KINDS_TOLD} more kinds" if len(kinds) > _KINDS_TOLD else ""
    return "; ".join(f"{kind.count} {buffer_kind_text(kind)}" for kind in kinds[:_KINDS_TOLD]) + more


def buffer_title(finding: Finding, facts: BufferFacts) -> str:
    """Which buffers are kept, and by what."""
    what = buffers_text(facts.buffers)
    return {
        HeldBy.WORK: f"{finding.subject} keeps Work handles past their step, and each keeps its buffer: {what}",
        HeldBy.REGISTRY: f"functional collectives whose results nobody has waited for keep their buffers: {what}",
        HeldBy.REGISTRY_AND_PROGRAM: f"{finding.subject} keeps results of functional collectives that nobody "
        "has waited "
        f"for: {what}",
        HeldBy.NATIVE: f"a communication buffer is held by native code and no Python object explains it: {what}",
        HeldBy.PROGRAM: f"{finding.subject} keeps communication buffers past their step: {what}",
    }[facts.held_by]


def buffer_advice(finding: Finding, facts: BufferFacts) -> str:
    """When to let the buffers go, by what keeps them."""
    cut = finding.subject
    if facts.held_by == HeldBy.WORK:
        wait = "" if facts.waited else " after waiting for them"
        return (
            f"Drop the Work handles from {cut}{wait}, e.g. with {cut.partition(' in ')[0]}.clear() once every "
            "wait() of "
            "the step has returned: a Work keeps the tensor it sends, receives or reduces as long as it lives, waited "
            "for or not."
        )
    if facts.held_by in (HeldBy.REGISTRY, HeldBy.REGISTRY_AND_PROGRAM):
        then = "" if facts.held_by == HeldBy.REGISTRY else f" Then take it out of {cut}."
        return (
            "Wait for each result (torch.distributed._functional_collectives.wait_tensor, or use the tensor that the "
            "call returned), also where it is thrown away: until then torch keeps the Work, and the Work its "
            f"tensors.{then}"
        )
    if facts.held_by == HeldBy.NATIVE:
        return (
            "Look for an operation that never completes, a Work kept by a future or a communication hook, or a C++ "
            "extension that caches the buffer."
        )
    take = "Take each one out" if facts.container else "Let go of each one"
    pop = " (pop it instead of counting through the list)" if facts.container == "list" else ""
    return (
        f"Their send or receive is over; {cut} is what keeps these buffers. {take} when its microbatch is done{pop}, "
        "and keep a gradient edge (torch.autograd.graph.get_gradient_edge) instead of a sent output."
    )


def holder_to_blame(buffers: CommBuffers) -> str:
    """One sentence for a holder of another kind that keeps communication buffers too."""
    dead = "their" if buffers.dead == buffers.count else f"{buffers.dead} of their"
    weak = f"; {dead} Python tensors are dead, their storages are not" if buffers.dead else ""
    several = buffers.count > 1
    return (
        f" Among what it keeps {'are' if several else 'is'} {buffers.count} communication "
        f"{'buffers' if several else 'buffer'} ({bytes_text(buffers.bytes)}: "
        f"{buffers_text(buffers)}{weak}): this holder is to blame, not the communication."
    )


def contexts_title(_finding: Finding, facts: OpenContextsFacts) -> str:
    """How many contexts are open, and who opened them."""
    where = f", opened at {', '.join(facts.issued_at[:_PLACES_TOLD])}" if facts.issued_at else ""
    many = "s" if facts.count != 1 else ""
    return f"{facts.count} distributed-autograd context{many} (DistAutogradContext) left open{where}"


def contexts_advice(_finding: Finding, _facts: OpenContextsFacts) -> str:
    """How to leave a context."""
    return (
        "Enter the context with `with torch.distributed.autograd.context() as context_id:` around forward, "
        "backward and "
        "the reading of the gradients: leaving it, also by an exception, is the only thing that releases it, on every "
        "worker it has talked to. It lives in torch's own container in C++; gc neither sees nor frees it."
    )


def opened_text(facts: OpenContextsFacts) -> str:
    """Where contexts were opened, and which workers they know."""
    places = f"Opened at {', '.join(facts.opened_at[:_PLACES_TOLD])}. " if facts.opened_at else ""
    return places + (f"Workers known: {', '.join(map(str, facts.workers))}. " if facts.workers else "")


def dropped_title(_finding: Finding, facts: DroppedFacts) -> str:
    """How many Works were dropped, and where they were issued."""
    at = f" issued at {facts.issued_at}" if facts.issued_at else ""
    operations = f"{facts.count} {facts.direction} operation{'s' if facts.count != 1 else ''}"
    return f"the Work of {operations}{at} was dropped before anybody waited for it"


def dropped_advice(_finding: Finding, _facts: DroppedFacts) -> str:
    """What a Work is kept for."""
    return (
        "Keep the Work until its wait() has returned, then drop it: until then nobody knows whether the buffer has "
        "crossed, and writing into a buffer that is still being sent, or reading one that is still being received, is "
        "undefined."
    )


def open_passes_title(_finding: Finding, facts: OpenPassesFacts) -> str:
    """How many distributed backwards still run."""
    passes = f"{facts.count} distributed backward pass{'es' if facts.count > 1 else ''}"
    return f"{passes} still running after the step"


def open_passes_advice(_finding: Finding, _facts: OpenPassesFacts) -> str:
    """Where to look for the rank that failed."""
    return (
        "A distributed backward that has failed must leave no pass behind; look at the workers' logs for the rank that "
        "never answered."
    )


def empty_contexts_title(_finding: Finding, facts: EmptyContextsFacts) -> str:
    """How many contexts are open, and who opened them."""
    at = f", opened at {', '.join(facts.opened_at[:_PLACES_TOLD])}" if facts.opened_at else ""
    return f"{facts.count} distributed-autograd contexts left open, without gradients{at}"


def empty_contexts_advice(_finding: Finding, _facts: EmptyContextsFacts) -> str:
    """How to leave a context."""
    return "Leave each context (`with torch.distributed.autograd.context()`): it is released on no worker before."


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
    """`recv #12 from rank 0 (number 2 of step 4), still waiting`."""
    return f"{operation_text(operation)}, {_DOING[operation.state]}"


def comm_notes(state: CommState) -> tuple[str, ...]:
    """What a rank did last, whom it waited for, and what its peers never answered."""
    notes = []
    if state.last is not None:
        notes.append(f"last operation: {last_operation_text(state.last)}")
    if state.missing is not None:
        operation, ranks = state.missing.operation, state.missing.ranks
        notes.append(
            f"in {operation.direction} #{operation.nth} of group {operation.group}, to which {ranks_text(ranks)} "
            "never came"
        )
    return (*notes, *map(_unmatched_text, state.unmatched))


def _unmatched_text(lost: Unmatched) -> str:
    verb = "received" if lost.direction == Direction.SEND else "sent"
    more = f" and {lost.missing - 1} after it" if lost.missing > 1 else ""
    answer = "which sent and received nothing"
    if lost.answer is not None:
        answer = f"whose last operation was: {last_operation_text(lost.answer)}"
    return f"never {verb} by rank {lost.peer}: {operation_text(lost.first)}{more}; rank {lost.peer}, {answer}"


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
