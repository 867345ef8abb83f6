"""How is a reference at the step's peak written, on which line is it, and what leads to it?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from leakscope.findings.model import Hop
from leakscope.findings.naming.expressions import as_expression
from leakscope.findings.naming.trace import hops
from leakscope.findings.why import HopReason
from leakscope.graph.model import HeapGraph, ObjectKind
from leakscope.graph.paths import ShortestPaths

NAMES_SHOWN = 6
"""Names at the most, chosen, of references to cut."""


def line_above(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """The line of this reference, or of the nearest one above it that has a line."""
    for above in [reference, *paths.path_to(graph, int(graph.holder[reference]))[::-1]]:
        r = graph.reference(above)
        if where := r.where or graph.object(r.holder).where:
            return where
    return ""


def spoken_as(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """As its user would write it, along the shortest path."""
    path = [*paths.path_to(graph, int(graph.holder[reference])), reference]
    return as_expression(graph, path, reference)


def variables(graph: HeapGraph, cuts: Sequence[int]) -> tuple[str, ...]:
    """Their names, where all of them are variables of running functions or of the script; else ()."""
    holders = [graph.object(int(graph.holder[c])) for c in cuts]
    own = [holder.kind == ObjectKind.FRAME or holder.name == "__main__" for holder in holders]
    names = dict.fromkeys(graph.reference(c).name.removeprefix("local ").removeprefix(".") for c in cuts)
    return tuple(names) if all(own) and all(map(str.isidentifier, names)) else ()


def together(spoken: Sequence[str]) -> str:
    """`inputs and outputs in step(), batch in main()`."""
    places: dict[str, list[str]] = defaultdict(list)
    for text in spoken[:NAMES_SHOWN]:
        name, _, place = text.partition(" in ")
        places[place].append(name)
    parts = [_listed(names) + (f" in {place}" if place else "") for place, names in places.items()]
    more = f" and {len(spoken) - NAMES_SHOWN} more" if len(spoken) > NAMES_SHOWN else ""
    return ", ".join(parts) + more


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def trace_through(graph: HeapGraph, paths: ShortestPaths, cut: int, storage: int, frees: int) -> tuple[Hop, ...]:
    """From the root through the cut down to the storage."""
    above = paths.path_to(graph, int(graph.holder[cut]))
    path = [*above, cut]
    came: dict[int, int] = {int(graph.held[cut]): -1}
    waiting = [int(graph.held[cut])]
    while waiting and storage not in came:
        here = waiting.pop(0)
        for reference in graph.out_of(here).tolist():
            held = int(graph.held[reference])
            if held not in came:
                came[held] = reference
                waiting.append(held)
    down: list[int] = []
    at = storage
    while came.get(at, -1) >= 0:
        down.append(came[at])
        at = int(graph.holder[came[at]])
    path += down[::-1]
    start = int(graph.holder[path[0]])
    return hops(graph, start, path, len(above) + 1, {cut: frees}, (HopReason.STILL_NEEDED, HopReason.NOT_USED_AGAIN))
