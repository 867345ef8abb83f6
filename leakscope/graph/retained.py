"""What would go free if a reference were cut?"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from leakscope.graph.cycles import find_cycles
from leakscope.graph.model import REFERENCE_KINDS, HeapGraph, Ints, ReferenceKind
from leakscope.graph.reach import Mask, reachable

_Found = TypeVar("_Found", Ints, Mask)


def _once(work: Callable[[HeapGraph], _Found]) -> Callable[[HeapGraph], _Found]:
    """What `work` finds in a graph is found once, and kept for as long as the graph is."""
    known: WeakKeyDictionary[HeapGraph, _Found] = WeakKeyDictionary()

    @wraps(work)
    def found(graph: HeapGraph) -> _Found:
        if graph not in known:
            known[graph] = work(graph)
        return known[graph]

    return found


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


@_once
def passing(graph: HeapGraph) -> Ints:
    """References from running statements to what something else holds as well: gone when the statement is over, as the list
    of `losses.append(step())`. A loop's iterator, say, is on the stack alone, and stays."""
    operands = np.flatnonzero(graph.reference_kind == REFERENCE_KINDS.index(ReferenceKind.OPERAND))
    return operands[kept_without(graph, operands)[graph.held[operands]]] if len(operands) else operands


@_once
def _kept(graph: HeapGraph) -> Mask:
    return kept_without(graph, np.zeros(0, dtype=np.int64))


def freed_without(graph: HeapGraph, references: Ints) -> Mask:
    """Which objects cutting these references would free."""
    return _kept(graph) & ~kept_without(graph, references)


def freed_storages(graph: HeapGraph, references: Ints) -> Ints:
    """Storages that cutting these references would free."""
    return graph.storages[freed_without(graph, references)[graph.storages]]


def bytes_freed(graph: HeapGraph, references: Ints) -> int:
    """Bytes that cutting these references would free: measured on the graph, not reached."""
    return int(graph.bytes[freed_storages(graph, references)].sum())
