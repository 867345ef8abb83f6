"""By which few handles of the program is some memory held, where each of its tensors has holders of its own?

A model's parameters are held by the model, by the optimizer, and each by the graphs of some outputs: letting go takes
`model`, `optimizer` and the list of outputs, though no reference to any tensor is among those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.findings.cut.multi_cut import FREED_THRESHOLD, MAX_REFERENCES, those_needed, without
from leakscope.findings.naming.trace import generic
from leakscope.graph.model import HeapGraph, Ints, ObjectKind, ReferenceKind
from leakscope.graph.paths import paths_from_roots
from leakscope.graph.retained import freed_with_gc

_WHOLE = (ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER, ObjectKind.EXCEPTION, ObjectKind.TRACEBACK)
"""What is let go of as a whole, not part by part."""
_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE)


@dataclass(frozen=True)
class Handle:
    """A reference to let go of, on a way that leads over it."""

    reference: int
    way: tuple[int, ...]


def handle_at(graph: HeapGraph, way: Sequence[int]) -> int:
    """Position on a way of the reference that a person would let go of.

    That to a model, an optimizer or an error as a whole, else the last named one down to the first tensor, before what
    no code writes.
    """
    handle = 0
    for place, reference in enumerate(map(graph.reference, way)):
        if reference.kind == ReferenceKind.UNNAMED:
            break
        if place == 0 or generic(reference.name) != "[i]":
            handle = place
        held = graph.object(reference.held).kind
        if held in _WHOLE or held in _TENSORS:
            break
    return handle


def few_handles(graph: HeapGraph, storages: Ints) -> list[Handle]:
    """A few handles that free these storages together, with a full collection after them; [] where more are needed."""
    wanted = int(graph.bytes[storages].sum())
    found: dict[int, Handle] = {}
    freed = _bytes_freed(graph, storages)
    while len(found) < MAX_REFERENCES:
        rest, number = without(graph, list(found))
        paths = paths_from_roots(rest)
        left = [s for s in storages.tolist() if np.isfinite(paths.cost[s]) and paths.last[s] >= 0]
        if not left:
            return []
        way = tuple(number[paths.path_to(rest, max(left, key=lambda s: int(graph.bytes[s])))].tolist())
        handle = way[handle_at(graph, way)]
        found[handle] = Handle(handle, way)
        if freed(list(found)) >= FREED_THRESHOLD * wanted:
            handles = list(found)
            return [
                found[handles[k]] for k in those_needed(handles, lambda some: freed(some) >= FREED_THRESHOLD * wanted)
            ]
    return []


def _bytes_freed(graph: HeapGraph, storages: Ints) -> Callable[[Sequence[int]], int]:
    def freed(references: Sequence[int]) -> int:
        gone = freed_with_gc(graph, np.asarray(references, dtype=np.int64))
        return int(graph.bytes[storages[gone[storages]]].sum())

    return freed
