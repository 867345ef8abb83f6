"""What would go free if a reference were cut?"""

from __future__ import annotations

import numpy as np

from leakscope.graph.cycles import find_cycles
from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.reach import Mask, reachable


def kept_without(graph: HeapGraph, references: Ints) -> Mask:
    """Which objects stay alive once these references are gone, by reference counting alone, without gc.

    Kept is what a root reaches, and what a cycle that still closes reaches: gc might come, the cut alone
    does not free it.
    """
    keep = np.ones(len(graph.holder), dtype=bool)
    keep[references] = False
    holder, held = graph.holder[keep], graph.held[keep]
    living = reachable(len(graph), holder, held, graph.roots)
    cycles = find_cycles(graph, references)
    closed = np.flatnonzero(cycles.cyclic[cycles.label] & ~living)
    if len(closed) == 0:
        return living
    return living | reachable(len(graph), holder, held, closed)


def freed_storages(graph: HeapGraph, references: Ints) -> Ints:
    """Storages that cutting these references would free."""
    storages = graph.storages
    before = kept_without(graph, np.zeros(0, dtype=np.int64))
    after = kept_without(graph, references)
    return storages[before[storages] & ~after[storages]]


def bytes_freed(graph: HeapGraph, references: Ints) -> int:
    """Bytes that cutting these references would free: measured on the graph, not reached."""
    return int(graph.bytes[freed_storages(graph, references)].sum())
