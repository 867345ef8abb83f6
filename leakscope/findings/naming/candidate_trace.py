"""The way to a candidate's storage, object by object; for a cycle once around, then down to the memory."""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import Cut, CutReference, CycleReference, Hop
from leakscope.findings.naming.trace import generic, hops


def trace_of(found: Candidate, cut: Cut | None, frees: dict[int, int]) -> tuple[Hop, ...]:
    graph, group = found.graph, found.group
    if group.freed == 0:
        instances = cut.references[0].indexes if cut else ()
        place = next((k + 1 for k, r in enumerate(group.way) if r in instances), found.tensor_at)
        kept = (
            "only the references to cut together keep it"
            if cut and cut.also
            else "only the cut reference keeps it"
            if cut
            else "held by more than what is listed here"
        )
        return hops(
            graph, group.start, group.way, place, frees, ("held on the way from a root", kept), found.one_of_its_kind
        )
    reasons = ("", "no root leads here: the cycle keeps itself")
    around = group.cycles[0] if group.cycles else ()
    start = int(graph.holder[around[0]]) if around else group.start
    told = hops(graph, start, around, 0, frees, reasons)
    down = hops(graph, group.start, group.way, 0, frees, ("", "held by the cycle"))
    on_cycle = {int(graph.held[r]) for r in around}
    storage_in_reach = group.start in on_cycle and (len(group.way) <= 1 or len(around) == 1)
    return told[:-1] + down if storage_in_reach and around and group.start == start else told + down


def on_trace(cut: Cut, trace: tuple[Hop, ...]) -> Cut:
    """The cut with the position of each of its references on the trace."""

    def position(reference: CutReference) -> int | None:
        instances = frozenset(reference.indexes)
        return next((place for place, hop in enumerate(trace) if not instances.isdisjoint(hop.references)), None)

    return replace(cut, references=tuple(replace(r, trace=position(r)) for r in cut.references))


def cycle_of(found: Candidate) -> tuple[CycleReference, ...]:
    """The references of the candidate's smallest cycle; none where nothing holds itself."""
    graph = found.graph
    around = [graph.reference(r) for r in (found.group.cycles[0] if found.group.cycles else ())]
    return tuple(
        CycleReference(
            graph.object(r.holder).label, generic(r.name), graph.object(r.held).label, r.holder, r.index, r.held
        )
        for r in around
    )
