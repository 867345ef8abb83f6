"""What holds itself?"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.reach import Mask, components


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
