"""How is a small graph walked? In plain Python: scipy takes longer to load than most runs have to walk."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

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
