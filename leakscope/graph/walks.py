"""Reachability, shortest distances, strongly connected components and referrers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope import native
from leakscope.graph import _walks_fallback
from leakscope.graph.model import HeapGraph, Ints

Mask = NDArray[np.bool_]
Places = NDArray[np.int32]


def _engine() -> Any:
    """The module that walks: `_walks.c`, or its twin in Python."""
    return native.walks() or _walks_fallback


def _column(numbers: NDArray[np.integer]) -> Places:
    return np.ascontiguousarray(numbers, dtype=np.int32)


def _rows(count: int, of: NDArray[np.integer], values: NDArray[np.integer]) -> tuple[Places, Places]:
    """(first, rows): the values of object k are `rows[first[k]:first[k + 1]]`, in the order given."""
    first, rows = _engine().rows(count, _column(of), _column(values))
    return np.frombuffer(first, dtype=np.int32), np.frombuffer(rows, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Below:
    """References and starts, prepared for repeated walks."""

    first: Places
    below: Places
    starts: Places

    def reached(self, past: int | None = None) -> Mask:
        """Which objects can be reached from the starts; `past` is an object that may not be entered."""
        mask = _engine().reached(self.first, self.below, self.starts, -1 if past is None else past)
        return np.frombuffer(mask, dtype=bool)


def from_starts(
    count: int, holder: NDArray[np.integer], held: NDArray[np.integer], starts: NDArray[np.integer]
) -> Below:
    """Prepare walks from these starts."""
    return Below(*_rows(count, holder, held), _column(starts))


def reachable(count: int, holder: NDArray[np.integer], held: NDArray[np.integer], starts: NDArray[np.integer]) -> Mask:
    """Which of `count` objects can be reached from `starts`, including the starts."""
    if len(starts) == 0:
        return np.zeros(count, dtype=bool)
    return from_starts(count, holder, held, starts).reached()


def breadth_first(
    count: int, holder: NDArray[np.integer], held: NDArray[np.integer], start: int
) -> tuple[Places, Places]:
    """(Objects in the order of a breadth-first walk, the object before each one; -1 where there is none).

    Of the objects that one object holds, the lower number comes first.
    """
    first, holders = _rows(count, held, holder)
    # sorted by what is held, then by the holder: counting twice is linear
    rising = np.repeat(np.arange(count, dtype=np.int32), np.diff(first))
    order, before = _engine().breadth_first(*_rows(count, holders, rising), start)
    return np.frombuffer(order, dtype=np.int32), np.frombuffer(before, dtype=np.int32)


def distances(
    count: int, holder: Ints, held: Ints, weight: NDArray[np.float64], starts: Ints, start_cost: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The distance of each object from the nearest start; infinite where no path leads.

    Raises:
        ValueError: A cost is negative or not a number.

    """
    columns = (_column(holder), _column(held), weight, _column(starts), start_cost)
    return np.frombuffer(_engine().distances(count, *columns), dtype=np.float64)


def components(count: int, holder: NDArray[np.integer], held: NDArray[np.integer]) -> tuple[Ints, Mask]:
    """Return (component of each object, whether that component is a cycle): strongly connected components.

    An object that refers to itself is a cycle of one.
    """
    if count == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    label = np.frombuffer(_engine().components(*_rows(count, holder, held)), dtype=np.int32).astype(np.int64)
    cyclic = np.bincount(label) > 1
    cyclic[label[holder[holder == held]]] = True
    return label, cyclic


class ReferrerIndex:
    """References between `count` objects, indexed by referent: sorted once by counting, linear in the references."""

    def __init__(self, count: int, holder: Places, held: Places) -> None:
        self.count = count
        self._first, self._holder = _rows(count, held, holder)

    def times(self) -> Places:
        """Number of references to each object."""
        return np.diff(self._first)

    def into(self, objects: NDArray[np.integer]) -> tuple[Places, Places]:
        """Return (referrer, referent) of every reference to these distinct objects."""
        wanted = objects[objects < self.count]
        lengths = self._first[wanted + 1] - self._first[wanted]
        held = np.repeat(wanted, lengths).astype(np.int32, copy=False)
        return self._holder[in_rows(self._first[wanted], lengths)], held


def in_rows(first: NDArray[np.integer], lengths: NDArray[np.integer]) -> Ints:
    """Positions of this many entries from each start."""
    ends = np.cumsum(lengths, dtype=np.int64)
    places: Ints = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - lengths), lengths)
    return places


def occurrences(values: NDArray[np.integer], wanted: NDArray[np.integer]) -> Ints:
    """Number of occurrences of each wanted value among the sorted values."""
    times: Ints = np.searchsorted(values, wanted, "right") - np.searchsorted(values, wanted, "left")
    return times


@dataclass(frozen=True)
class Cycles:
    """The strongly connected components of a graph."""

    label: Ints
    """Component of each object."""
    cyclic: Mask
    """Whether each component is a cycle."""

    def members(self, component: int) -> Ints:
        """The objects of a component."""
        return np.flatnonzero(self.label == component)


def find_cycles(graph: HeapGraph, without: Ints | None = None) -> Cycles:
    """Find all cycles of the graph, with some references removed."""
    keep = np.ones(len(graph.holder), dtype=bool)
    if without is not None:
        keep[without] = False
    label, cyclic = components(len(graph), graph.holder[keep], graph.held[keep])
    return Cycles(label, cyclic)


def smallest_cycle(graph: HeapGraph, cycles: Cycles, start: int) -> list[int]:
    """References of the shortest path from `start` back to itself inside its component; [] if there is none."""
    component = cycles.label[start]
    came: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for reference in graph.out_of(here).tolist():
            there = int(graph.held[reference])
            if cycles.label[there] != component:
                continue
            if there == start:
                path = [reference]
                while here != start:
                    path.append(came[here])
                    here = int(graph.holder[came[here]])
                return path[::-1]
            if there not in came:
                came[there] = reference
                waiting.append(there)
    return []
