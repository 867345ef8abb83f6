"""The function of `leakscope.backward` that replaces a leaking pipeline backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from leakscope.findings.facts import CommBuffers, Origin, RuleName
from leakscope.findings.known_leaks import known_leak
from leakscope.findings.model import Finding, Hop, See
from leakscope.findings.rules.hook_pileup import HookFacts
from leakscope.findings.rules.late_release import LateReleaseFacts
from leakscope.findings.rules.p2p_buffer import BufferFacts, HeldBy
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
    """What a hand-written backward does wrong that leakscope's does not, or torch's own."""

    CLOSURE = "a closure that calls itself walks the outputs"
    HOOKS = "hooks stay on the nodes of a split backward"
    INTERMEDIATES = "the nodes between the halves of a split backward are kept"
    OUTPUTS = "outputs are kept once they are sent, or their edges once backward has run"
    PARKED = "gradients are left in the .grad of kept inputs"
    ARGUMENTS = "callers hold what backward has used"
    TORCH = "torch's own schedules keep it"


def _see(function: str, does: str, *lines: str, beside: str = "") -> See:
    names = ", ".join(filter(None, (function, beside)))
    return See(f"{_MODULE}.{function}", (f"from {_MODULE} import {names}", *lines), does)


SEES: Mapping[Fault, See] = {
    Fault.CLOSURE: _see("stage_backward", "goes through nested outputs in a loop: no closure keeps them", _CALL),
    Fault.HOOKS: _see(
        "stage_backward_input",
        "takes its hooks off the nodes when it is done: none leads back",
        *_SPLIT,
        beside="stage_backward_weight",
    ),
    Fault.INTERMEDIATES: _see(
        "stage_backward_weight",
        "takes the nodes out of each group before it runs it",
        *_SPLIT,
        beside="stage_backward_input",
    ),
    Fault.OUTPUTS: _see(
        "output_edges",
        "keeps their place in the graph instead, for backward to take out of what waits",
        'waiting.append({"stage_output": output_edges(outputs), "input_values": inputs})',
        "input_grads = stage_backward(output_grads=output_grads, boxed=True, **waiting.pop(0))",
        beside="stage_backward",
    ),
    Fault.PARKED: _see(
        "stage_backward",
        "returns gradients, leaves none in .grad, and empties what it is handed",
        "outputs, inputs = waiting.pop(0)",
        _CALL,
    ),
    Fault.ARGUMENTS: _see("stage_backward", "empties the lists it is handed: no caller keeps what is used", _CALL),
    Fault.TORCH: _see(
        "install",
        "has torch's schedules let go of it as soon as they are done with it",
        "install(release_outputs=True)  # before the first step()",
    ),
}
"""What to see for each fault: three lines at most, with the import."""


_OF_DIRECTION: Mapping[str, Fault] = {Direction.SEND: Fault.OUTPUTS, Direction.RECV: Fault.PARKED}


def see(finding: Finding, by_hand: bool) -> See | None:
    """What does without the fault of a finding of one rank; None where it is no pipeline's.

    `by_hand`: the rank's script sends and receives by itself, not through torch's pipelining.
    """
    known = known_leak(finding.trace)
    if known is not None:
        return SEES[Fault.TORCH] if known.mended else None
    fault = _fault(finding) if by_hand and finding.origin == Origin.APPLICATION else None
    return None if fault is None else SEES[fault]


def _fault(finding: Finding) -> Fault | None:
    """The fault of a pipeline's backward that a finding's facts and its trace tell."""
    facts, trace = finding.facts, finding.trace
    if isinstance(facts, CycleFacts | UncollectableFacts):
        of_graph = finding.comm_buffers is not None or any(hop.kind == ObjectKind.GRAD_NODE for hop in trace)
        return _of_cycle(facts) if of_graph else None
    if isinstance(facts, HookFacts):
        return Fault.HOOKS if facts.of_node else None
    if isinstance(facts, LateReleaseFacts):
        return Fault.ARGUMENTS if facts.of_backward else None
    if isinstance(facts, BufferFacts):
        return _of_buffers(facts.buffers) if facts.held_by == HeldBy.PROGRAM else None
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
    """Where a container keeps grad nodes, or edges, and no tensor of theirs."""
    kinds = (ObjectKind.GRAD_NODE, ObjectKind.TENSOR, ObjectKind.PARAMETER)
    place = next((place for place, hop in enumerate(trace) if hop.kind in kinds), 0)
    if not place or trace[place].kind != ObjectKind.GRAD_NODE:
        return None
    return Fault.OUTPUTS if trace[place - 1].type.endswith(_EDGE) else Fault.INTERMEDIATES


def _of_buffers(buffers: CommBuffers) -> Fault | None:
    """By which way most of them went; None where backward has nothing to do with them."""
    if not buffers.in_graph:
        return None
    return _OF_DIRECTION.get(buffers.kinds[0].direction) if buffers.kinds else None
