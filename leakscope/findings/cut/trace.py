"""What holds a candidate's storage, object by object; for a cycle once around, then down to the memory."""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import Cut, CutReference, CycleReference, Hop
from leakscope.findings.naming.trace import generic, hops
from leakscope.findings.why import HopReason


def trace_of(candidate: Candidate, cut: Cut | None, frees: dict[int, int]) -> tuple[Hop, ...]:
    """From the root, or once around the cycle, down to the typical storage.

    `frees` maps references to the bytes their cut would free; what lies below the cut is leaked.
    """
    return _from_root(candidate, cut, frees) if candidate.group.freed == 0 else _from_cycle(candidate, frees)


def _from_root(candidate: Candidate, cut: Cut | None, frees: dict[int, int]) -> tuple[Hop, ...]:
    group = candidate.group
    instances = cut.references[0].indexes if cut else ()
    # without a cut, the container that was seen to gain it leaks, whatever else holds it too
    uncut = candidate.tensor_at if candidate.gaining < 0 else min(candidate.gaining, candidate.tensor_at)
    leaked_from = next((k + 1 for k, r in enumerate(group.path) if r in instances), uncut)
    if cut is None:
        kept = HopReason.MORE_HOLDERS
    elif cut.also:
        kept = HopReason.ONLY_CUTS
    else:
        kept = HopReason.ONLY_CUT
    reasons = (HopReason.ABOVE_CUT, kept)
    return hops(candidate.graph, group.start, group.path, leaked_from, frees, reasons, candidate.names)


def path_over(holder: Candidate, reference: int) -> tuple[Hop, ...]:
    """The path from a root over one reference to cut, which is not the trace's; what lies below it is leaked."""
    group = holder.group
    leaked_from = group.path.index(reference) + 1
    reasons = (HopReason.ABOVE_CUT, HopReason.ONLY_CUTS)
    return hops(holder.graph, group.start, group.path, leaked_from, {}, reasons, holder.names)


def _from_cycle(candidate: Candidate, frees: dict[int, int]) -> tuple[Hop, ...]:
    graph, group = candidate.graph, candidate.group
    cycle = group.cycles[0] if group.cycles else ()
    start = int(graph.holder[cycle[0]]) if cycle else group.start
    around = hops(graph, start, cycle, 0, frees, (None, HopReason.CYCLE_ITSELF))
    down = hops(graph, group.start, group.path, 0, frees, (None, HopReason.HELD_BY_CYCLE))
    on_cycle = {int(graph.held[r]) for r in cycle}
    storage_in_reach = group.start in on_cycle and (len(group.path) <= 1 or len(cycle) == 1)
    return around[:-1] + down if storage_in_reach and cycle and group.start == start else around + down


def on_trace(cut: Cut, trace: tuple[Hop, ...]) -> Cut:
    """The cut with the position of each of its references on the trace."""

    def position(reference: CutReference) -> int | None:
        instances = frozenset(reference.indexes)
        return next((place for place, hop in enumerate(trace) if not instances.isdisjoint(hop.references)), None)

    return replace(cut, references=tuple(replace(r, trace=position(r)) for r in cut.references))


def cycle_of(candidate: Candidate) -> tuple[CycleReference, ...]:
    """The references of the candidate's smallest cycle; none where nothing holds itself."""
    graph = candidate.graph
    around = [graph.reference(r) for r in (candidate.group.cycles[0] if candidate.group.cycles else ())]
    return tuple(
        CycleReference(
            graph.object(r.holder).label, generic(r.name), graph.object(r.held).label, r.holder, r.index, r.held
        )
        for r in around
    )
