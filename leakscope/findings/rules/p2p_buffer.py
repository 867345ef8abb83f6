"""Buffers of sends, receives and collectives that are kept past their step, by their Work or by whoever has the tensor."""

from __future__ import annotations

from leakscope.findings.comm.operations import CONTEXT, buffers_of, told
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import RuleName
from leakscope.graph.model import Reference, ReferenceKind, RootKind

NAME = RuleName.P2P_BUFFER
_MOST = 0.5


def _by_work(found: Candidate) -> Reference | None:
    """The reference by which a Work holds the first tensor on the way."""
    before = found.references[: found.tensor_at]
    return next((r for r in reversed(before) if r.kind == ReferenceKind.COMM), None)


def _directly(found: Candidate) -> bool:
    """Most of it crossed between two ranks, and no graph or hook stands between the holder and the buffers."""
    if any(
        r.kind in (ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED, ReferenceKind.HOOK) or r.name == "._base"
        for r in found.references
    ):
        return False
    crossed = buffers_of(found.graph, found.group.storages)
    bytes_crossed = sum(
        int(found.graph.bytes[s]) for s, crossing in crossed.items() if crossing.direction in ("send", "recv")
    )
    return bytes_crossed > _MOST * found.group.bytes


def _by_registry(found: Candidate) -> bool:
    """Native code holds buffers of collectives that nobody has waited for: torch keeps their Works until somebody does."""
    return found.objects[0].root == RootKind.NATIVE and found.tensor_at == 0 and _nobody_waited(found)


def _by_registry_too(found: Candidate) -> bool:
    """The same, and the program holds the results as well."""
    return any(o.unexplained for o in found.objects[found.tensor_at :]) and _nobody_waited(found)


def _nobody_waited(found: Candidate) -> bool:
    waiting = [
        s
        for s, c in buffers_of(found.graph, found.group.storages).items()
        if c.direction not in (CONTEXT, "send", "recv") and not c.waited
    ]
    return sum(int(found.graph.bytes[s]) for s in waiting) > _MOST * found.group.bytes


def _past_their_step(found: Candidate) -> bool:
    """Some crossed in a step before the look's; a buffer made anew in each is none that is kept."""
    return any(crossing.step < found.step for crossing in buffers_of(found.graph, found.group.storages).values())


def applies(found: Candidate) -> bool:
    return (
        found.group.freed == 0
        and _past_their_step(found)
        and (_by_work(found) is not None or _directly(found) or _by_registry(found) or _by_registry_too(found))
    )


def title(found: Candidate, cut: str) -> str:
    what = told(found.graph, found.group.storages)
    if _by_work(found) is not None:
        return f"{cut} keeps Work handles past their step, and each keeps its buffer: {what}"
    if _by_registry(found):
        return f"functional collectives whose results nobody has waited for keep their buffers: {what}"
    if _by_registry_too(found):
        return f"{cut} keeps results of functional collectives that nobody has waited for: {what}"
    if found.objects[0].root == RootKind.NATIVE and found.tensor_at == 0:
        return f"a buffer of the wire is held by native code and no Python object explains it: {what}"
    return f"{cut} keeps buffers of the wire past their step: {what}"


def advice(found: Candidate, cut: str) -> str:
    if _by_work(found) is not None:
        crossed = buffers_of(found.graph, found.group.storages).values()
        name = cut.partition(" in ")[0]
        wait = "" if all(c.waited for c in crossed) else " after waiting for them"
        return f"Drop the Work handles from {cut}{wait}, e.g. with {name}.clear() once every wait() of the step has returned: a Work keeps the tensor it sends, receives or reduces as long as it lives, waited for or not."
    if _by_registry(found) or _by_registry_too(found):
        then = "" if _by_registry(found) else f" Then take it out of {cut}."
        return f"Wait for each result (torch.distributed._functional_collectives.wait_tensor, or use the tensor that the call returned), also where it is thrown away: until then torch keeps the Work, and the Work its tensors.{then}"
    if found.objects[0].root == RootKind.NATIVE and found.tensor_at == 0:
        return "Look for an operation that never completes, a Work kept by a future or a communication hook, or a C++ extension that caches the buffer."
    take = "Take each one out" if found.container else "Let go of each one"
    pop = (
        " (pop it instead of counting through the list)"
        if found.container and found.container[1].type == "list"
        else ""
    )
    return f"The wire is done with these buffers; {cut} is what keeps them. {take} when its microbatch is done{pop}, and keep a gradient edge (torch.autograd.graph.get_gradient_edge) instead of a sent output."
