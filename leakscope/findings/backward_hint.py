"""The function of `leakscope.backward` that replaces a leaking pipeline backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from leakscope.findings.facts import CommBuffers, Origin, RuleName
from leakscope.findings.known_leaks import known_leak
from leakscope.findings.model import BackwardHint, Finding, Hop
from leakscope.findings.rules.hook_pileup import HookFacts
from leakscope.findings.rules.late_release import LateReleaseFacts
from leakscope.findings.rules.p2p_buffer import BufferFacts, BufferHolder
from leakscope.findings.rules.tensor_cycle import Closing, CycleFacts
from leakscope.findings.rules.uncollectable_cycle import ClosedBy, UncollectableFacts
from leakscope.graph.model import ObjectKind
from leakscope.run.rows import Direction

_MODULE = "leakscope.backward"
_EDGE = "GradientEdge"
_GROWTH = (RuleName.STEP_GROWTH, RuleName.RETAINED_GRAPH)
_CALL = "input_grads = stage_backward(outputs, output_grads, inputs, boxed=True)"
_SPLIT = (
    "grads, groups = stage_backward_input(outputs, output_grads, inputs, weights, park_grad=False)",
    "stage_backward_weight(weights, groups, boxed=True)",
)


class Fault(StrEnum):
    """A fault of a hand-written backward, or of that of torch."""

    CLOSURE = "a closure that calls itself walks the outputs"
    HOOKS = "hooks stay on the nodes of a split backward"
    INTERMEDIATES = "the nodes between the halves of a split backward are kept"
    OUTPUTS = "outputs are kept once they are sent, or their edges once backward has run"
    PARKED = "gradients are left in the .grad of kept inputs"
    ARGUMENTS = "callers hold what backward has used"
    TORCH = "torch's own schedules keep it"


def _see(function: str, does: str, *lines: str, beside: str = "") -> BackwardHint:
    names = ", ".join(filter(None, (function, beside)))
    return BackwardHint(f"{_MODULE}.{function}", (f"from {_MODULE} import {names}", *lines), does)


SEES: Mapping[Fault, BackwardHint] = {
    Fault.CLOSURE: _see("stage_backward", "iterates over nested outputs without a closure", _CALL),
    Fault.HOOKS: _see(
        "stage_backward_input",
        "removes its hooks from the nodes when it is done",
        *_SPLIT,
        beside="stage_backward_weight",
    ),
    Fault.INTERMEDIATES: _see(
        "stage_backward_weight",
        "removes the nodes from each group before it runs it",
        *_SPLIT,
        beside="stage_backward_input",
    ),
    Fault.OUTPUTS: _see(
        "output_edges",
        "stores their position in the graph instead, which backward removes from the queue",
        'waiting.append({"stage_output": output_edges(outputs), "input_values": inputs})',
        "input_grads = stage_backward(output_grads=output_grads, boxed=True, **waiting.pop(0))",
        beside="stage_backward",
    ),
    Fault.PARKED: _see(
        "stage_backward",
        "returns gradients instead of leaving them in .grad, and clears its argument lists",
        "outputs, inputs = waiting.pop(0)",
        _CALL,
    ),
    Fault.ARGUMENTS: _see("stage_backward", "clears its argument lists, so callers retain no used tensors", _CALL),
    Fault.TORCH: _see(
        "install",
        "makes torch's schedules release it after its last use",
        "install(release_outputs=True)  # before the first step()",
    ),
}
"""Replacement for each fault: at most three lines, with the import."""


_OF_DIRECTION: Mapping[str, Fault] = {Direction.SEND: Fault.OUTPUTS, Direction.RECV: Fault.PARKED}


def see(finding: Finding, by_hand: bool) -> BackwardHint | None:
    """Replacement for the fault of a finding of one rank; None outside pipelines.

    `by_hand`: the script of the rank sends and receives itself, not through torch's pipelining.
    """
    known = known_leak(finding.trace)
    if known is not None:
        return SEES[Fault.TORCH] if known.is_fixed_by_install else None
    fault = _fault(finding) if by_hand and finding.origin == Origin.APPLICATION else None
    return None if fault is None else SEES[fault]


def _fault(finding: Finding) -> Fault | None:
    """The fault of a pipeline backward, by the facts and the trace of a finding."""
    facts, trace = finding.facts, finding.trace
    if isinstance(facts, CycleFacts | UncollectableFacts):
        of_graph = finding.comm_buffers is not None or any(hop.kind == ObjectKind.GRAD_NODE for hop in trace)
        return _of_cycle(facts) if of_graph else None
    if isinstance(facts, HookFacts):
        return Fault.HOOKS if facts.of_node else None
    if isinstance(facts, LateReleaseFacts):
        return Fault.ARGUMENTS if facts.of_backward else None
    if isinstance(facts, BufferFacts):
        return _of_buffers(facts.buffers) if facts.held_by == BufferHolder.PROGRAM else None
    if finding.rule not in _GROWTH:
        return None
    if any(above.reference == ".grad" and above.kind == ObjectKind.TENSOR for above in trace):
        return Fault.PARKED
    return None if finding.comm_buffers is None else _of_nodes(trace) or _of_buffers(finding.comm_buffers)


def _of_cycle(facts: CycleFacts | UncollectableFacts) -> Fault | None:
    if isinstance(facts, UncollectableFacts):
        return Fault.HOOKS if facts.closed_by == ClosedBy.HOOK and facts.hidden is not None else None
    return {Closing.RECURSION: Fault.CLOSURE, Closing.HOOK: Fault.HOOKS}.get(facts.closing)


def _of_nodes(trace: Sequence[Hop]) -> Fault | None:
    """The fault of a container with autograd nodes or edges and without their tensors."""
    kinds = (ObjectKind.GRAD_NODE, ObjectKind.TENSOR, ObjectKind.PARAMETER)
    place = next((place for place, hop in enumerate(trace) if hop.kind in kinds), 0)
    if not place or trace[place].kind != ObjectKind.GRAD_NODE:
        return None
    return Fault.OUTPUTS if trace[place - 1].type.endswith(_EDGE) else Fault.INTERMEDIATES


def _of_buffers(buffers: CommBuffers) -> Fault | None:
    """The fault by the direction of most buffers; None if they are not part of a graph."""
    if not buffers.in_graph:
        return None
    return _OF_DIRECTION.get(buffers.kinds[0].direction) if buffers.kinds else None
