"""What would go free if a reference were cut?"""

from __future__ import annotations

import numpy as np

from leakscope.graph.cycles import find_cycles
from leakscope.graph.dominators import Dominators, find_dominators
from leakscope.graph.model import KINDS, REFERENCE_KINDS, HeapGraph, Ints, ObjectKind, ReferenceKind
from leakscope.graph.once import once
from leakscope.graph.reach import Mask, reachable

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
"""References that gc may not see: a cycle over one of them may stay for ever (pytorch#7343)."""
_TENSORS = [KINDS.index(kind) for kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER)]
_GRAD_NODE = KINDS.index(ObjectKind.GRAD_NODE)


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


@once
def passing(graph: HeapGraph) -> Ints:
    """References from running statements to what something else holds as well.

    They are gone when the statement is over, as that to the list of `losses.append(step())`. A loop's iterator, say, is
    on the stack alone, and stays.
    """
    operands = np.flatnonzero(graph.reference_kind == REFERENCE_KINDS.index(ReferenceKind.OPERAND))
    return operands[kept_without(graph, operands)[graph.held[operands]]] if len(operands) else operands


@once
def _kept(graph: HeapGraph) -> Mask:
    return kept_without(graph, _NONE)


@once
def _reached(graph: HeapGraph) -> Mask:
    return reachable(len(graph), graph.holder, graph.held, graph.roots)


@once
def dominators(graph: HeapGraph) -> Dominators:
    """Which object keeps which, as the graph is."""
    return find_dominators(graph, _NONE)


@once
def _dominators_later(graph: HeapGraph) -> Dominators:
    """The same once the statements that run now are over."""
    gone = passing(graph)
    return find_dominators(graph, gone) if len(gone) else dominators(graph)


def freed_without(graph: HeapGraph, references: Ints, later: bool = False) -> Mask:
    """Which objects cutting these references would free; `later`: once the statements that run now are over.

    One reference is asked of the dominators; several, or one on a cycle, take walks over a graph without them.
    """
    if len(references) == 1:
        tree = _dominators_later(graph) if later else dominators(graph)
        freed = tree.freed_by(graph, int(references[0]))
        if freed is not None:
            return freed
    return freed_by_walk(graph, np.concatenate([references, passing(graph)]) if later else references)


def freed_by_walk(graph: HeapGraph, references: Ints) -> Mask:
    """The same, by walking the graph with and without them."""
    return _kept(graph) & ~kept_without(graph, references)


def freed_with_gc(graph: HeapGraph, references: Ints) -> Mask:
    """Which objects cutting these references and then a full collection would free, once the statements that run now
    are over.

    What no root reaches, but for what a cycle keeps that gc may not see.
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
    """Which references of a tensor to its grad node gc sees: those where C++ has the tensor by nothing and the node by
    that alone (`THPVariable_traverse` in torch/csrc/autograd/python_variable.cpp), as in `ctx.y = y`.

    Only of a node that has the tensor as an attribute: those of a `torch.autograd.Function` are objects of Python's.
    """
    owners = np.bincount(graph.held[by_native], minlength=len(graph))
    by_attribute = graph.reference_kind == REFERENCE_KINDS.index(ReferenceKind.ATTRIBUTE)
    of_function = np.zeros(len(graph), dtype=bool)
    of_function[graph.holder[on_cycle & by_attribute]] = True
    of_function[graph.holder[on_cycle & ~by_attribute]] = False
    to_node = np.isin(graph.kind[graph.holder], _TENSORS) & (graph.kind[graph.held] == _GRAD_NODE)
    shown: Mask = to_node & (owners[graph.holder] == 0) & (owners[graph.held] == 1) & of_function[graph.held]
    return shown


def freed_storages(graph: HeapGraph, references: Ints, later: bool = False) -> Ints:
    """Storages that cutting these references would free; `later` as in `freed_without`."""
    return graph.storages[freed_without(graph, references, later)[graph.storages]]


def bytes_freed(graph: HeapGraph, references: Ints) -> int:
    """Bytes that cutting these references would free: measured on the graph, not reached."""
    return int(graph.bytes[freed_storages(graph, references)].sum())
