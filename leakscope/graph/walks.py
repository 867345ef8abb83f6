"""Reachability, strongly connected components and referrers; in C where built, else in numpy and Python."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import HeapGraph, Ints
from leakscope.native import walks

if TYPE_CHECKING:
    from scipy.sparse import csr_array


SMALL = 4000
"""References, chosen: walking them takes a millisecond, which is what scipy's matrices of them take to make."""


def is_small(column: NDArray[np.generic]) -> bool:
    """Whether a graph of as many references, given by any of their columns, is walked here."""
    return len(column) <= SMALL


def held_by_each(count: int, holder: NDArray[np.integer], held: NDArray[np.integer]) -> list[list[int]]:
    """What each of `count` objects holds, rising."""
    each: list[list[int]] = [[] for _ in range(count)]
    order = np.lexsort((held, holder))
    for above, below in zip(holder[order].tolist(), held[order].tolist(), strict=True):
        each[above].append(below)
    return each


def walk(each: Sequence[Sequence[int]], starts: Iterable[int]) -> list[int]:
    """What a walk from `starts` reaches, the starts included, in no order that means anything."""
    seen = bytearray(len(each))
    reached = []
    waiting = list(starts)
    while waiting:
        index = waiting.pop()
        if not seen[index]:
            seen[index] = 1
            reached.append(index)
            waiting += each[index]
    return reached


def breadth_first(each: Sequence[Sequence[int]], start: int) -> tuple[list[int], dict[int, int]]:
    """(Objects in the order of a breadth-first walk, the one before each but the first)."""
    order, before = [start], {}
    for index in order:  # grows as it is walked
        for below in each[index]:
            if below != start and below not in before:
                before[below] = index
                order.append(below)
    return order, before


def strong_components(each: Sequence[Sequence[int]]) -> list[int]:
    """For each object the number of its strongly connected component (Tarjan 1972, with a stack of its own)."""
    count = len(each)
    number, low, component = [0] * count, [0] * count, [-1] * count
    visited, components = 0, 0
    path: list[int] = []
    for start in range(count):
        if number[start]:
            continue
        calls = [(start, iter(each[start]))]
        visited += 1
        number[start] = low[start] = visited
        path.append(start)
        while calls:
            index, below = calls[-1]
            for there in below:
                if not number[there]:
                    visited += 1
                    number[there] = low[there] = visited
                    path.append(there)
                    calls.append((there, iter(each[there])))
                    break
                if component[there] < 0:
                    low[index] = min(low[index], number[there])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[index])
                if low[index] == number[index]:
                    while component[index] < 0:
                        component[path.pop()] = components
                    components += 1
    return component


def check_costs(*costs: NDArray[np.float64]) -> None:
    """Raise ValueError where one of the costs is negative or not a number; an infinite one is that of no way at all.

    Dijkstra's algorithm gives wrong distances otherwise, and `_walks.c` relies on it for the size of its heap.
    """
    if not all((each >= 0).all() for each in costs):
        raise ValueError("a cost is negative or not a number")


def distances(
    count: int, holder: Ints, held: Ints, weight: NDArray[np.float64], starts: Ints, start_cost: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How far each object is from the nearest start (Dijkstra 1959); infinite where no walk leads.

    Raises ValueError as `check_costs`.
    """
    check_costs(weight, start_cost)
    each: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for above, below, far in zip(holder.tolist(), held.tolist(), weight.tolist(), strict=True):
        each[above].append((below, far))
    cost = [float("inf")] * count
    waiting: list[tuple[float, int]] = []
    for start, far in zip(starts.tolist(), start_cost.tolist(), strict=True):
        cost[start] = min(cost[start], far)
        heapq.heappush(waiting, (far, start))
    while waiting:
        far, index = heapq.heappop(waiting)
        if far > cost[index]:
            continue
        for below, more in each[index]:
            if far + more < cost[below]:
                cost[below] = far + more
                heapq.heappush(waiting, (far + more, below))
    return np.array(cost)


Mask = NDArray[np.bool_]
_MOST = 2**31
"""Objects and references that int32 can number."""


def load_for_large_graphs() -> None:
    """Import what walks large graphs: for who must not import in the middle of what it measures."""
    if walks() is None:
        import scipy.sparse.csgraph  # noqa: F401


def reachable(count: int, holder: NDArray[np.integer], held: NDArray[np.integer], starts: NDArray[np.integer]) -> Mask:
    """Which of `count` objects a walk from `starts` along holder -> held reaches, the starts included."""
    if len(starts) == 0:
        return np.zeros(count, dtype=bool)
    return from_starts(count, holder, held, starts).reached()


class Below(Protocol):
    """References and some starts, made ready to be walked several times."""

    def reached(self, past: int | None = None) -> Mask:
        """Which objects a walk from the starts reaches; `past` an object that it may not enter."""
        ...


def from_starts(
    count: int, holder: NDArray[np.integer], held: NDArray[np.integer], starts: NDArray[np.integer]
) -> Below:
    """What is below these starts."""
    if walks() is not None and fits(count, holder):
        first, below = walks().rows(count, column(holder), column(held))
        return _Rows(first, below, column(starts))
    if is_small(holder):
        return _Lists(held_by_each(count, holder, held), starts.tolist())
    source = np.concatenate([holder, np.full(len(starts), count)])
    return _Matrix(matrix(count + 1, source, np.concatenate([held, starts]), twice=True))


@dataclass(frozen=True, eq=False)
class _Lists:
    """Of a small graph."""

    each: list[list[int]]
    starts: list[int]

    def reached(self, past: int | None = None) -> Mask:
        mask = np.zeros(len(self.each), dtype=bool)
        each = self.each
        if past is not None:
            each = [*each]
            each[past] = []
        mask[walk(each, self.starts)] = True
        if past is not None:
            mask[past] = False
        return mask


@dataclass(frozen=True, eq=False)
class _Rows:
    """Walked in C: what object k holds is `below[first[k]:first[k + 1]]`, int32 both."""

    first: bytearray
    below: bytearray
    starts: NDArray[np.int32]

    def reached(self, past: int | None = None) -> Mask:
        first, below = memoryview(self.first).cast("i"), memoryview(self.below).cast("i")
        return np.frombuffer(walks().reached(first, below, self.starts, -1 if past is None else past), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Matrix:
    """Of a large graph, walked by scipy; an object above all, the last, has a reference to each start."""

    references: csr_array

    def reached(self, past: int | None = None) -> Mask:
        from scipy.sparse.csgraph import breadth_first_order

        references = self.references
        top = references.shape[0] - 1
        if past is not None:
            references = references.copy()
            references.indices[references.indices == past] = top
        mask = np.zeros(top, dtype=bool)
        order = breadth_first_order(references, top, directed=True, return_predecessors=False)
        mask[order[order < top]] = True
        return mask


def components(count: int, holder: NDArray[np.integer], held: NDArray[np.integer]) -> tuple[Ints, Mask]:
    """(component of each object, whether that component is a cycle): strongly connected components.

    An object that holds itself is a cycle of one.
    """
    if count == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    label = np.asarray(_labels(count, holder, held), dtype=np.int64)
    cyclic = np.bincount(label) > 1
    cyclic[label[holder[holder == held]]] = True
    return label, cyclic


def _labels(count: int, holder: NDArray[np.integer], held: NDArray[np.integer]) -> list[int] | Ints:
    if walks() is not None and fits(count, holder):
        first, below = (memoryview(part).cast("i") for part in walks().rows(count, column(holder), column(held)))
        return np.frombuffer(walks().components(first, below), dtype=np.int32).astype(np.int64)
    if is_small(holder):
        return strong_components(held_by_each(count, holder, held))
    from scipy.sparse.csgraph import connected_components

    label: Ints = connected_components(matrix(count, holder, held), directed=True, connection="strong")[1]
    return label


def fits(count: int, holder: NDArray[np.integer]) -> bool:
    """Whether so many objects and references are walked in C."""
    return max(count, len(holder)) < _MOST


def column(numbers: NDArray[np.integer]) -> NDArray[np.int32]:
    """Numbers of objects as C takes them."""
    return np.ascontiguousarray(numbers, dtype=np.int32)


def matrix(count: int, holder: NDArray[np.integer], held: NDArray[np.integer], twice: bool = False) -> csr_array:
    """The references as a matrix; `twice` leaves an object that holds another twice as two entries.

    Summing them up sorts every row, which a breadth-first walk does not need; without it scipy's strong components
    never end.
    """
    from scipy.sparse import coo_array

    index = np.int32 if fits(count, holder) else np.int64
    data = np.ones(len(holder), dtype=np.float64)  # csgraph works in doubles; any other type is copied
    references = coo_array(
        (data, (holder.astype(index, copy=False), held.astype(index, copy=False))), shape=(count, count)
    )
    references.has_canonical_format = twice
    return references.tocsr()


Places = NDArray[np.int32]


class HeldBy:
    """References between `count` objects, found by what is held: sorted once, by counting, linear in the references."""

    def __init__(self, count: int, holder: Places, held: Places) -> None:
        self.count = count
        self._first, self._holder = _rows(count, held, holder)

    def times(self) -> Places:
        """How many references hold each object."""
        return np.diff(self._first)

    def into(self, objects: NDArray[np.integer]) -> tuple[Places, Places]:
        """(holder, held) of every reference to one of these objects, which are told once each."""
        asked = objects[objects < self.count]
        lengths = self._first[asked + 1] - self._first[asked]
        held = np.repeat(asked, lengths).astype(np.int32, copy=False)
        return self._holder[in_rows(self._first[asked], lengths)], held


def _rows(count: int, of: Places, values: Places) -> tuple[Places, Places]:
    """(where the row of each of `count` objects begins, and where all end; the rows): the values of each object."""
    if walks() is not None:
        first, rows = walks().rows(count, np.ascontiguousarray(of), np.ascontiguousarray(values))
        return np.frombuffer(first, dtype=np.int32), np.frombuffer(rows, dtype=np.int32)
    from scipy.sparse import coo_array

    table = coo_array((np.ones(len(of), dtype=bool), (of, values)), shape=(count, count))
    table.has_canonical_format = True  # twice is twice: nothing is to be summed up, which would sort the rows
    table = table.tocsr()
    return table.indptr, table.indices


def in_rows(first: NDArray[np.integer], lengths: NDArray[np.integer]) -> Ints:
    """Places of so many entries from each of these first ones on."""
    ends = np.cumsum(lengths, dtype=np.int64)
    places: Ints = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - lengths), lengths)
    return places


def occurrences(values: NDArray[np.integer], asked: NDArray[np.integer]) -> Ints:
    """How often each of the asked stands among the values, which are sorted."""
    times: Ints = np.searchsorted(values, asked, "right") - np.searchsorted(values, asked, "left")
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
    """All cycles of the graph, some references left out."""
    keep = np.ones(len(graph.holder), dtype=bool)
    if without is not None:
        keep[without] = False
    label, cyclic = components(len(graph), graph.holder[keep], graph.held[keep])
    return Cycles(label, cyclic)


def smallest_cycle(graph: HeapGraph, cycles: Cycles, start: int) -> list[int]:
    """References of the shortest path from `start` back to itself inside its component; [] where there is none."""
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
