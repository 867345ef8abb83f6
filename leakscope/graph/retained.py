"""Retained size by dominators, and the garbage above an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from leakscope.graph.model import (
    REACHABLE,
    REFERENCE_KINDS,
    TENSOR_KINDS,
    HeapGraph,
    Ints,
    ObjectKind,
    ReferenceKind,
    once,
)
from leakscope.graph.walks import Below, Mask, breadth_first, components, find_cycles, from_starts, reachable


@dataclass(frozen=True, eq=False)
class Dominators:
    """Which objects are retained, by roots and cycles, and which of them by a single reference."""

    kept: Mask
    """Whether a root or a cycle retains each object."""
    component: Ints
    """Strongly connected component of each object."""
    sole: Ints
    """The single reference that retains each object; -1 if there are several, or if it is a root or on a cycle."""
    below: Below
    """All references, prepared for walks from roots and objects on cycles."""
    _known: dict[int, Mask] = field(default_factory=dict)

    def dominated(self, index: int) -> Mask:
        """Which objects would be freed if this one were, including itself."""
        if index not in self._known:
            self._known[index] = self.kept & ~self.below.reached(past=index)
        return self._known[index]

    def freed_by(self, graph: HeapGraph, reference: int) -> Mask | None:
        """Which objects cutting one reference would free.

        None if the reference is on a cycle: only a new search shows whether another cycle remains.
        """
        held = int(graph.held[reference])
        if self.component[held] == self.component[graph.holder[reference]]:
            return None
        return self.dominated(held) if self.sole[held] == reference else np.zeros(len(graph), dtype=bool)


def find_dominators(graph: HeapGraph, without: Ints) -> Dominators:
    """Compute the dominators of a graph with some references removed."""
    keep = np.ones(len(graph.holder), dtype=bool)
    keep[without] = False
    cycles = find_cycles(graph, without)
    starts = (graph.root > 0) | cycles.cyclic[cycles.label]
    below = from_starts(len(graph), graph.holder[keep], graph.held[keep], np.flatnonzero(starts))
    kept = below.reached()
    # Referrers of a start are irrelevant: it stays anyway.
    keeping = np.flatnonzero(keep & kept[graph.holder] & ~starts[graph.held])
    times = np.bincount(graph.held[keeping], minlength=len(graph))
    alone = keeping[times[graph.held[keeping]] == 1]
    sole = np.full(len(graph), -1, dtype=np.int64)
    sole[graph.held[alone]] = alone
    return Dominators(kept, cycles.label, sole, below)


@dataclass(frozen=True)
class Remainder:
    """What is left of the garbage after a cut."""

    kept: Mask
    """Whether a remaining cycle reaches each object."""
    component: Ints
    closed: Mask
    """Whether each object is on such a cycle."""


@dataclass(frozen=True, eq=False)
class GarbageAbove:
    """The garbage that leads to some storages, with objects and references renumbered from 0."""

    objects: Ints
    """Their numbers in the heap graph, ascending."""
    references: Ints
    """The numbers of the references between them."""
    holder: Ints
    held: Ints
    inner: Mask
    """Whether each reference is on a cycle: both ends are in one strongly connected component."""

    def left(self, cut: Mask) -> Remainder:
        """Return what remains without these references, by reference counting alone."""
        count = len(self.objects)
        holder, held = self.holder[~cut], self.held[~cut]
        component, cyclic = components(count, holder, held)
        closed: Mask = cyclic[component] if count else np.zeros(0, dtype=bool)
        return Remainder(reachable(count, holder, held, np.flatnonzero(closed)), component, closed)

    def kept_by(self, left: Remainder, cut: Mask, target: int) -> list[int]:
        """References of a cycle that still retains an object, and of the path down from it: a shortest cycle through
        the nearest object above that is on one.

        Whatever frees the object cuts one of them, or one below the cycles.
        """
        there = np.flatnonzero(~cut)
        count, label = len(self.objects), left.component
        upwards, below = breadth_first(count, self.held[there], self.holder[there], target)
        start = int(upwards[left.closed[upwards]][0])
        down = [start]
        while down[-1] != target:
            down.append(int(below[down[-1]]))
        inside = there[(label[self.holder[there]] == label[start]) & (label[self.held[there]] == label[start])]
        order, before = breadth_first(count, self.holder[inside], self.held[inside], start)
        place = np.full(count, len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        closing = self.holder[inside[self.held[inside] == start]]
        around = [start, int(closing[np.argmin(place[closing])])]
        while around[-1] != start:
            around.append(int(before[around[-1]]))
        return self._references_along(inside, around[::-1]) + self._references_along(there, down)

    def _references_along(self, among: Ints, objects: Sequence[int]) -> list[int]:
        """One reference for each step from an object to the next."""
        count = len(self.objects)
        steps = np.asarray(objects[:-1], dtype=np.int64) * count + np.asarray(objects[1:], dtype=np.int64)
        pairs = self.holder[among] * count + self.held[among]
        order = np.argsort(pairs, kind="stable")
        return [int(r) for r in among[order[np.searchsorted(pairs[order], steps)]]]


def garbage_above(graph: HeapGraph, storages: Sequence[int]) -> GarbageAbove:
    """Everything that is not alive and leads to these storages; nothing alive does."""
    dead = graph.freed != REACHABLE
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


_NONE: Ints = np.zeros(0, dtype=np.int64)
_BY_NATIVE_CODE = [
    REFERENCE_KINDS.index(kind)
    for kind in (
        ReferenceKind.GRAD_GRAPH,
        ReferenceKind.SAVED,
        ReferenceKind.HOOK,
        ReferenceKind.COMM,
        ReferenceKind.MEMORY,
        ReferenceKind.UNNAMED,
    )
]
"""References that gc may not see: a cycle through one of them may never be freed (pytorch#7343)."""


def kept_without(graph: HeapGraph, references: Ints) -> Mask:
    """Which objects stay alive without these references, by reference counting alone, without gc.

    Retained is what a root reaches and what a remaining cycle reaches: gc may free it later, the cut alone does not.
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


@once
def passing(graph: HeapGraph) -> Ints:
    """References from running statements to objects that something else holds as well.

    They are gone when the statement ends, like the one to the list of `losses.append(step())`. A loop's iterator is
    only on the stack, and stays.
    """
    operands = np.flatnonzero(graph.is_reference_kind(ReferenceKind.OPERAND))
    return operands[kept_without(graph, operands)[graph.held[operands]]] if len(operands) else operands


@once
def _kept(graph: HeapGraph) -> Mask:
    return kept_without(graph, _NONE)


@once
def _reached(graph: HeapGraph) -> Mask:
    return reachable(len(graph), graph.holder, graph.held, graph.roots)


@once
def dominators(graph: HeapGraph) -> Dominators:
    """The dominators of the graph as it is."""
    return find_dominators(graph, _NONE)


@once
def _dominators_later(graph: HeapGraph) -> Dominators:
    """The dominators after the running statements have ended."""
    gone = passing(graph)
    return find_dominators(graph, gone) if len(gone) else dominators(graph)


def freed_without(graph: HeapGraph, references: Ints, later: bool = False) -> Mask:
    """Which objects cutting these references would free; with `later`, after the running statements have ended.

    One reference is answered by the dominators; several, or one on a cycle, need walks over the graph without them.
    """
    if len(references) == 1:
        tree = _dominators_later(graph) if later else dominators(graph)
        freed = tree.freed_by(graph, int(references[0]))
        if freed is not None:
            return freed
    return freed_by_walk(graph, np.concatenate([references, passing(graph)]) if later else references)


def freed_by_walk(graph: HeapGraph, references: Ints) -> Mask:
    """Mask of what is freed without these references, by walking the graph with and without them."""
    return _kept(graph) & ~kept_without(graph, references)


def freed_with_gc(graph: HeapGraph, references: Ints) -> Mask:
    """Which objects cutting these references and a full collection would free, after the running statements have ended.

    This is everything unreachable from a root, except what a cycle retains that gc may not see.
    """
    gone = np.concatenate([references, passing(graph)])
    keep = np.ones(len(graph.holder), dtype=bool)
    keep[gone] = False
    holder, held = graph.holder[keep], graph.held[keep]
    living = reachable(len(graph), holder, held, graph.roots)
    label = find_cycles(graph, gone).label
    on_cycle = keep & (label[graph.holder] == label[graph.held])
    by_native = np.isin(graph.reference_kind, _BY_NATIVE_CODE) & keep
    hidden = by_native & on_cycle
    if hidden.any():
        hidden &= ~_shown(graph, by_native & kept_without(graph, gone)[graph.holder], on_cycle)
    unseen = np.flatnonzero(np.isin(label, np.unique(label[graph.holder[hidden]])) & ~living)
    return _reached(graph) & ~(living | reachable(len(graph), holder, held, unseen))


def _shown(graph: HeapGraph, by_native: Mask, on_cycle: Mask) -> Mask:
    """Which references from a tensor to its grad node gc sees: those where C++ does not own the tensor and owns the
    node only through it (`THPVariable_traverse` in torch/csrc/autograd/python_variable.cpp), as in `ctx.y = y`.

    Only for a node with the tensor as an attribute: nodes of a `torch.autograd.Function` are Python objects.
    """
    owners = np.bincount(graph.held[by_native], minlength=len(graph))
    by_attribute = graph.is_reference_kind(ReferenceKind.ATTRIBUTE)
    of_function = np.zeros(len(graph), dtype=bool)
    of_function[graph.holder[on_cycle & by_attribute]] = True
    of_function[graph.holder[on_cycle & ~by_attribute]] = False
    to_node = graph.is_kind(*TENSOR_KINDS)[graph.holder] & graph.is_kind(ObjectKind.GRAD_NODE)[graph.held]
    shown: Mask = to_node & (owners[graph.holder] == 0) & (owners[graph.held] == 1) & of_function[graph.held]
    return shown


def freed_storages(graph: HeapGraph, references: Ints, later: bool = False) -> Ints:
    """Storages that cutting these references would free; `later` as for `freed_without`."""
    return graph.storages[freed_without(graph, references, later)[graph.storages]]
