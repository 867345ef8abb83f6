"""Which ways lead to one tensor's memory, and what lets go of it?"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leakscope.findings.cut.multi_cut import without
from leakscope.findings.grouping.groups import Group, group_storages
from leakscope.findings.holding.letting_go import Held, let_go
from leakscope.findings.holding.model import Keeper, Link, Place, Way, Ways
from leakscope.findings.holding.session import is_interactive, keepers_of
from leakscope.findings.holding.typed import typed
from leakscope.findings.holding.written import where_of, written
from leakscope.graph.model import HeapGraph, ObjectKind
from leakscope.graph.paths import ShortestPaths, paths_from_roots, reference_costs
from leakscope.graph.reach import reachable

MOST_WAYS = 12
"""Ways that are told, chosen: a screen of them."""
_MOST_COUNTED = 1000
"""Ways that are counted, and:"""
_MOST_STEPS = 50_000
"""steps up that are tried for them, chosen: tenths of a second."""
_LONGEST = 200
"""References of a way, chosen; longer ones are not counted, but the shortest way is told whatever its length."""
_OTHER_ROOT = 60.0
"""Added for a way from what is a root and has shorter ways above it: it is told after those."""
_BODY = (ObjectKind.STORAGE, ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.SAVED_TENSOR)


@dataclass(frozen=True)
class _Found:
    """Ways as references of the whole graph."""

    ways: list[tuple[int, ...]]
    complete: bool


def ways_to(graph: HeapGraph, tensor: int, most: int = MOST_WAYS) -> Ways:
    """Every way to the memory of a tensor of the graph, the shortest one by each reference to it first."""
    storage = _storage_of(graph, tensor)
    keepers = keepers_of(graph)
    rest, number = without(graph, [r for references in keepers.values() for r in references])
    found = _ways(rest, paths_from_roots(rest), storage)
    objects: dict[int, int] = {}
    told = []
    for way in _one_by_each(rest, found.ways)[:most]:
        links = tuple(
            Link(r.name, _place(objects, r.holder), _place(objects, r.held), r.where) for r in map(rest.reference, way)
        )
        told.append(Way(written(rest, way), where_of(rest, way), links))
    above = reachable(len(rest), rest.held, rest.holder, np.asarray([storage]))
    places = [graph.object(index) for index in objects]
    group = next((g for g in group_storages(rest) if storage in g.storages and not g.freed), None)
    held = () if group is None else (Held(rest, number, _alone(rest, group, storage), ways=tuple(found.ways)),)
    going = let_go(graph, held, np.asarray([storage]))
    return Ways(
        label=graph.object(tensor).label,
        bytes=int(graph.bytes[storage]),
        ways=tuple(told),
        more=max(len(found.ways) - most, 0),
        all_counted=found.complete,
        of_garbage=bool((above[rest.freed != 0]).any()),
        keepers=tuple(_of_session(graph, storage)) if going is None else going.keepers,
        objects=tuple(Place(obj.label, obj.where, obj.root) for obj in places),
        letting_go=going,
        typed=() if going is None or not is_interactive(graph) else typed(graph, [going]),
    )


def _storage_of(graph: HeapGraph, tensor: int) -> int:
    below = [int(graph.held[r]) for r in graph.out_of(tensor).tolist()]
    return next((held for held in below if graph.object(held).kind == ObjectKind.STORAGE), tensor)


def _place(objects: dict[int, int], index: int) -> int:
    return objects.setdefault(index, len(objects))


def _ways(graph: HeapGraph, paths: ShortestPaths, storage: int) -> _Found:
    """Simple ways down to the storage, the shortest first: a search upwards that knows how far each start is."""
    found: list[tuple[int, ...]] = []
    starts = (graph.root > 0).tolist()
    # of ways as short the longest part first: else all parts of them would come before the first whole one
    waiting: list[tuple[float, int, int, int, tuple[int, ...]]] = [(float(paths.cost[storage]), 0, 0, storage, ())]
    costs, steps, cut_short = reference_costs(graph), 0, False
    while waiting and len(found) < _MOST_COUNTED and steps < _MOST_STEPS:
        cost, _, _, here, way = heapq.heappop(waiting)
        if here < 0:
            found.append(way)
            continue
        on_way = {storage, *(int(graph.held[r]) for r in way), here}
        below = cost - float(paths.cost[here])
        if starts[here] and way:
            steps += 1
            later = 0.0 if paths.last[here] < 0 else _OTHER_ROOT
            heapq.heappush(waiting, (cost + later, -len(way) - 1, steps, -1, way))
        if len(way) >= _LONGEST:
            cut_short = True
            continue
        for reference in graph.into(here).tolist():
            holder = int(graph.holder[reference])
            if holder in on_way or not np.isfinite(paths.cost[holder]):
                continue
            steps += 1
            total = below + float(costs[reference]) + float(paths.cost[holder])
            heapq.heappush(waiting, (round(total, 9), -len(way) - 1, steps, holder, (reference, *way)))
    if not found and paths.last[storage] >= 0:
        found.append(tuple(paths.path_to(graph, storage)))
    return _Found(found, not waiting and not cut_short)


def _one_by_each(graph: HeapGraph, ways: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """First the shortest way by each reference to the tensors that share the memory, then the other ways."""
    times: dict[int, int] = {}
    ranked = []
    for way in ways:
        last = next((r for r in reversed(way) if graph.object(int(graph.holder[r])).kind not in _BODY), way[-1])
        times[last] = times.get(last, 0) + 1
        ranked.append((times[last], way))
    return [way for _, way in sorted(ranked, key=lambda pair: pair[0])]


def _of_session(graph: HeapGraph, storage: int) -> Iterator[Keeper]:
    """What of the session leads to the storage."""
    above = reachable(len(graph), graph.held, graph.holder, np.asarray([storage]))
    for keeper, references in keepers_of(graph).items():
        if any(above[graph.held[r]] for r in references):
            yield keeper


def _alone(graph: HeapGraph, group: Group, storage: int) -> Group:
    """One storage of a group."""
    path = tuple(paths_from_roots(graph).path_to(graph, storage))
    return replace(group, storages=(storage,), bytes=int(graph.bytes[storage]), path=path)
