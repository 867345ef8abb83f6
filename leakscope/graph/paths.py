"""Shortest readable reference paths from a root or a cycle to each object."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import REFERENCE_KINDS, ROOTS, HeapGraph, Ints, ReferenceKind, RootKind, once
from leakscope.graph.ownership import is_built_with, is_library_line
from leakscope.graph.walks import distances

_REFERENCE_COST = {
    ReferenceKind.UNNAMED: 6.0,
    ReferenceKind.OPERAND: 6.0,
    ReferenceKind.GRAD_GRAPH: 1.2,
    ReferenceKind.SAVED: 1.2,
    ReferenceKind.HOOK: 1.5,
}
"""Cost of references that source code does not show; others cost 1. A path that the user can read is preferred to a
shorter one through C++.
"""
_ROOT_COST = {
    RootKind.FRAME: 1.0,
    RootKind.CALLBACK: 7.0,
    RootKind.MODULE: 1.5,
    RootKind.THREAD: 2.0,
    RootKind.INTERPRETER: 30.0,
    RootKind.NATIVE: 60.0,
}
"""Cost of a root: one that a user can open is preferred, however far."""
_GIVEN_COST = 0.5
"""Less than any root: a path through an object that the user named starts there."""
_LIBRARY_COST = 8.0
"""Cost of a library's module or frame."""
_DUNDER_COST = 0.7
"""Added for names internal to Python; less than one reference."""
_FAR = 1e9
"""Cost of a start that is not a root."""
_NAMES = 997
"""Hash classes of names that break ties between equal paths; a prime. Heuristic."""
_NAME_COST = 1e-6
"""Ties are broken by the checksum of a name modulo a prime, scaled so that no sum of them exceeds a cost."""


@dataclass(frozen=True)
class ShortestPaths:
    """A tree of shortest paths."""

    cost: NDArray[np.float64]
    """Infinite for unreachable objects."""
    last: Ints
    """The last reference on the path to each object, -1 at the start of a path."""

    def path_to(self, graph: HeapGraph, index: int) -> list[int]:
        """Return the references from the path's start down to an object; [] for the start itself."""
        path = []
        while (reference := int(self.last[index])) >= 0:
            path.append(reference)
            index = int(graph.holder[reference])
        return path[::-1]

    def start_of(self, graph: HeapGraph, index: int) -> int:
        """Return the start of the path to an object."""
        path = self.path_to(graph, index)
        return int(graph.holder[path[0]]) if path else index

    def storages_below(self, graph: HeapGraph, storages: Sequence[int]) -> Counter[int]:
        """Objects on the paths to these storages, with the number of paths through each."""
        last, holder = self.last.tolist(), graph.holder.tolist()
        below = Counter(storages)
        on_a_path: set[int] = set()
        for storage in storages:
            index = storage
            while index not in on_a_path:
                on_a_path.add(index)
                if last[index] >= 0:
                    index = holder[last[index]]
        # farthest first: each object has received all of its own before it passes them up
        for index in sorted(on_a_path, key=self.cost.__getitem__, reverse=True):
            if last[index] >= 0:
                below[holder[last[index]]] += below[index]
        return below


@once
def paths_from_roots(graph: HeapGraph) -> ShortestPaths:
    """Return shortest paths from what the user named, else from the root that a user would name first.

    The order is: a frame or module of the user, a frame that exists only for the snapshot, a library's, native code.
    """
    cost = np.array([_ROOT_COST.get(name, _FAR) for name in ROOTS])[graph.root]
    for index in np.flatnonzero(graph.root == ROOTS.index(RootKind.MODULE)).tolist():
        name = graph.object(index).name
        if is_built_with(name):
            cost[index] = _LIBRARY_COST
    for index in np.flatnonzero(graph.root == ROOTS.index(RootKind.FRAME)).tolist():
        if is_library_line(graph.object(index).where):
            cost[index] = _LIBRARY_COST
    given = np.asarray(list(graph.given), dtype=np.int64)
    cost[given] = _GIVEN_COST
    starts = np.union1d(graph.roots, given)
    return _paths(graph, starts, cost[starts])


def paths_from(graph: HeapGraph, starts: Ints) -> ShortestPaths:
    """Return shortest paths from these objects, with equal costs."""
    return _paths(graph, starts, np.ones(len(starts)))


def _paths(graph: HeapGraph, starts: Ints, start_cost: NDArray[np.float64]) -> ShortestPaths:
    n = len(graph)
    if n == 0 or len(starts) == 0:
        return ShortestPaths(np.full(n, np.inf), np.full(n, -1, dtype=np.int64))
    weight = reference_costs(graph)
    cost = distances(n, graph.holder, graph.held, weight, starts, start_cost)
    with_path = np.flatnonzero(np.isfinite(cost[graph.holder]))
    holder, held = graph.holder[with_path], graph.held[with_path]
    # the same sums that were compared: no rounding
    shortest = cost[holder] + weight[with_path] == cost[held]
    with_path, holder, held = with_path[shortest], holder[shortest], held[shortest]
    # among equally short ones, that of the nearest referrer
    order = np.lexsort((with_path, -holder, cost[holder], held))[::-1]
    last = np.full(n, -1, dtype=np.int64)
    last[held[order]] = with_path[order]
    last[starts[cost[starts] == start_cost]] = -1
    return ShortestPaths(cost, last)


def reference_costs(graph: HeapGraph) -> NDArray[np.float64]:
    """Cost of each reference; ties are broken by name, the same in every snapshot."""
    by_kind = np.array([_REFERENCE_COST.get(kind, 1.0) for kind in REFERENCE_KINDS])
    by_name = np.array([(zlib.crc32(_letters(name).encode()) % _NAMES) * _NAME_COST for name in graph.strings])
    dunder = np.array(
        [_DUNDER_COST if name.startswith((".__", "key ", "iterated", "local .")) else 0.0 for name in graph.strings]
    )
    costs: NDArray[np.float64] = by_kind[graph.reference_kind] + (by_name + dunder)[graph.reference_name]
    return costs


_NO_DIGITS = str.maketrans("", "", "0123456789")


def _letters(name: str) -> str:
    return name.translate(_NO_DIGITS)
