"""Which cycles keep some garbage, and which of them still do once references are cut?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.graph.cycles import find_cycles
from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.reach import Mask, components, matrix, reachable
from leakscope.graph.small import breadth_first, held_by_each, is_small


@dataclass(frozen=True)
class Left:
    """What is left of the garbage after a cut."""

    kept: Mask
    """Whether a cycle that still closes reaches each object."""
    component: Ints
    closed: Mask
    """Whether each object is on such a cycle."""


@dataclass(frozen=True, eq=False)
class GarbageAbove:
    """The garbage from which a walk reaches some storages, its objects and references numbered anew from 0."""

    objects: Ints
    """Their numbers in the heap graph, rising."""
    references: Ints
    """The same of the references between them."""
    holder: Ints
    held: Ints
    inner: Mask
    """Whether each reference lies on a cycle: both its ends are in one strongly connected component."""

    def left(self, cut: Mask) -> Left:
        """What stays once these references are gone, by reference counting alone."""
        count = len(self.objects)
        holder, held = self.holder[~cut], self.held[~cut]
        component, cyclic = components(count, holder, held)
        closed: Mask = cyclic[component] if count else np.zeros(0, dtype=bool)
        return Left(reachable(count, holder, held, np.flatnonzero(closed)), component, closed)

    def kept_by(self, left: Left, cut: Mask, target: int) -> list[int]:
        """References of a cycle that still keeps an object, and of the way down from there: a shortest cycle through
        the object of one that is nearest above.

        Whatever frees the object cuts one of them, or one below the cycles.
        """
        there = np.flatnonzero(~cut)
        count, label = len(self.objects), left.component
        upwards, below = _first_order(count, self.held[there], self.holder[there], target)
        start = int(upwards[left.closed[upwards]][0])
        down = [start]
        while down[-1] != target:
            down.append(int(below[down[-1]]))
        inside = there[(label[self.holder[there]] == label[start]) & (label[self.held[there]] == label[start])]
        order, before = _first_order(count, self.holder[inside], self.held[inside], start)
        place = np.full(count, len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        closing = self.holder[inside[self.held[inside] == start]]
        around = [start, int(closing[np.argmin(place[closing])])]
        while around[-1] != start:
            around.append(int(before[around[-1]]))
        return self._references_along(inside, around[::-1]) + self._references_along(there, down)

    def _references_along(self, among: Ints, objects: Sequence[int]) -> list[int]:
        """One of the references for each step from an object to the next."""
        count = len(self.objects)
        steps = np.asarray(objects[:-1], dtype=np.int64) * count + np.asarray(objects[1:], dtype=np.int64)
        pairs = self.holder[among] * count + self.held[among]
        order = np.argsort(pairs, kind="stable")
        return [int(r) for r in among[order[np.searchsorted(pairs[order], steps)]]]


def garbage_above(graph: HeapGraph, storages: Sequence[int]) -> GarbageAbove:
    """All that is no longer alive and leads to these storages; nothing that is alive does."""
    dead = graph.freed != 0
    among = np.flatnonzero(dead[graph.holder] & dead[graph.held])
    starts = np.asarray(storages, dtype=np.int64)
    above = reachable(len(graph), graph.held[among], graph.holder[among], starts)
    references = among[above[graph.held[among]]]
    objects = np.flatnonzero(above)
    label = find_cycles(graph).label
    number = np.full(len(graph), -1, dtype=np.int64)
    number[objects] = np.arange(len(objects))
    inner = label[graph.holder[references]] == label[graph.held[references]]
    return GarbageAbove(objects, references, number[graph.holder[references]], number[graph.held[references]], inner)


def _first_order(count: int, holder: Ints, held: Ints, start: int) -> tuple[Ints, Ints]:
    """(Objects in the order of a breadth-first walk, the one before each)."""
    if is_small(holder):
        order, before = breadth_first(held_by_each(count, holder, held), start)
        above = np.full(count, -1, dtype=np.int64)
        above[list(before)] = list(before.values())
        return np.asarray(order, dtype=np.int64), above
    from scipy.sparse.csgraph import breadth_first_order

    walked, came = breadth_first_order(matrix(count, holder, held), start, directed=True, return_predecessors=True)
    return walked.astype(np.int64), came.astype(np.int64)
