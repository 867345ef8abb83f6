"""The functions of `_walks.c` in Python, for where that was not built; the property tests compare the two."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int32]


def rows(count: int, holder: Column, held: Column) -> tuple[Column, Column]:
    """(first, below): what object k holds is `below[first[k]:first[k + 1]]`, in the order given."""
    first = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(holder, minlength=count), out=first[1:])
    return first, held[np.argsort(holder, kind="stable")]


def reached(first: Column, below: Column, starts: Column, past: int) -> NDArray[np.bool_]:
    """Whether a walk from the starts reaches each object without entering `past`; -1 for none."""
    firsts, targets = first.tolist(), below.tolist()
    seen = bytearray(len(first) - 1)
    if 0 <= past < len(seen):
        seen[past] = 1
    waiting = starts.tolist()
    while waiting:
        index = waiting.pop()
        if not seen[index]:
            seen[index] = 1
            waiting += targets[firsts[index] : firsts[index + 1]]
    if 0 <= past < len(seen):
        seen[past] = 0
    return np.frombuffer(seen, dtype=bool)


def breadth_first(first: Column, below: Column, start: int) -> tuple[Column, Column]:
    """(Objects in the order of a breadth-first walk, the object before each one; -1 where there is none)."""
    firsts, targets = first.tolist(), below.tolist()
    before = [-1] * (len(first) - 1)
    order = [start]
    for index in order:  # grows during the walk
        for there in targets[firsts[index] : firsts[index + 1]]:
            if before[there] < 0 and there != start:
                before[there] = index
                order.append(there)
    return np.array(order, dtype=np.int32), np.array(before, dtype=np.int32)


def components(first: Column, below: Column) -> Column:
    """The number of each object's strongly connected component (Tarjan 1972, with an explicit stack)."""
    count, targets = len(first) - 1, below.tolist()
    ends = first[1:].tolist()
    at = first.tolist()
    number, low, component = [0] * count, [0] * count, [-1] * count
    visited, found = 0, 0
    path: list[int] = []
    for start in range(count):
        if number[start]:
            continue
        calls = [start]
        visited += 1
        number[start] = low[start] = visited
        path.append(start)
        while calls:
            index = calls[-1]
            if at[index] < ends[index]:
                there = targets[at[index]]
                at[index] += 1
                if not number[there]:
                    visited += 1
                    number[there] = low[there] = visited
                    path.append(there)
                    calls.append(there)
                elif component[there] < 0:
                    low[index] = min(low[index], number[there])
                continue
            calls.pop()
            if calls:
                low[calls[-1]] = min(low[calls[-1]], low[index])
            if low[index] == number[index]:
                while component[index] < 0:
                    component[path.pop()] = found
                found += 1
    return np.array(component, dtype=np.int32)


def distances(
    count: int,
    holder: Column,
    held: Column,
    weight: NDArray[np.float64],
    starts: Column,
    start_cost: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The distance of each object from the nearest start (Dijkstra 1959); infinite where no path leads.

    Raises:
        ValueError: A cost is negative or not a number. An infinite cost is that of no path at all.

    """
    if not all((costs >= 0).all() for costs in (weight, start_cost)):
        raise ValueError("a cost is negative or not a number")
    first, order = rows(count, holder, np.arange(len(holder), dtype=np.int32))
    firsts, targets, further = first.tolist(), held[order].tolist(), weight[order].tolist()
    cost = [float("inf")] * count
    waiting: list[tuple[float, int]] = []
    for start, far in zip(starts.tolist(), start_cost.tolist(), strict=True):
        cost[start] = min(cost[start], far)
        heapq.heappush(waiting, (far, start))
    while waiting:
        far, index = heapq.heappop(waiting)
        if far > cost[index]:
            continue
        for place in range(firsts[index], firsts[index + 1]):
            there = targets[place]
            if far + further[place] < cost[there]:
                cost[there] = far + further[place]
                heapq.heappush(waiting, (cost[there], there))
    return np.array(cost)
