"""Strings, numbers, records and their like that something keeps gaining: judged as tensors are, in the same graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leakscope.graph.model import KINDS, REFERENCE_KINDS, HeapGraph, Ints, ObjectKind, ReferenceKind
from leakscope.record.model import Look, Rank
from leakscope.record.rows.objects import GainingContainer

_STORAGE, _OTHER = (KINDS.index(kind) for kind in (ObjectKind.STORAGE, ObjectKind.NATIVE))
_ITEM = REFERENCE_KINDS.index(ReferenceKind.ITEM)
_NAME = "objects"
"""Name of what stands for all that a container has gained: it is part of the fingerprint, and types are not."""


def counted_objects_of(look: Look) -> int:
    """Bytes of objects that are no tensors, gained since the process was first looked at, as `counted_of` has them."""
    return sum(counted_of(look, row) for row in look.containers)


def counted_of(look: Look, row: GainingContainer) -> int:
    """Bytes of a container's gain that the host's counter counts: what Python's own arenas serve is not in its count.

    All of them where a look has no count for them to be set against.
    """
    return row.bytes if look.counted_bytes is None else row.counted_bytes


def with_objects_for_storages(rank: Rank) -> Rank | None:
    """The rank as if what containers have gained were what is looked for; None where none of them gains any.

    Behind the objects of each look's graph stands one for each of its `containers`, in their order.
    """
    if not any(look.containers for look in rank.looks):
        return None
    return replace(
        rank, looks=tuple(replace(look, heap=_of_objects(look.heap, look.containers)) for look in rank.looks)
    )


def row_of(look: Look, storage: int) -> GainingContainer:
    """The container whose gain stands for a storage in the graph that `with_objects_for_storages` made of a look's."""
    return look.containers[storage - (len(look.heap) - len(look.containers))]


def _of_objects(graph: HeapGraph, rows: Sequence[GainingContainer]) -> HeapGraph:
    first, text = len(graph), len(graph.strings)
    holders = _ints([row.container for row in rows])
    own = [(f"{row.items:,} {row.item}", row.item.partition(" ")[0], _reference(graph, row)) for row in rows]
    strings = (*graph.strings, _NAME, "", *(word for words in own for word in words))
    label, kind, name = (np.arange(len(rows)) * 3 + text + 2 + k for k in range(3))
    none = np.full(len(rows), 0)
    nothing, named = none + text + 1, none + text
    return replace(
        graph,
        strings=strings,
        type=np.append(graph.type, kind),
        kind=np.append(np.where(graph.kind == _STORAGE, _OTHER, graph.kind), none + _STORAGE),
        label=np.append(graph.label, label),
        name=np.append(graph.name, named),
        where=np.append(graph.where, nothing),
        bytes=np.append(np.zeros(first, dtype=np.int64), _ints([row.bytes for row in rows])),
        size=np.append(graph.size, none - 1),
        root=np.append(graph.root, none),
        freed=np.append(graph.freed, graph.freed[holders]),
        unexplained=np.append(graph.unexplained, none),
        holder=np.append(graph.holder, holders),
        held=np.append(graph.held, np.arange(first, first + len(rows))),
        reference_kind=np.append(graph.reference_kind, none + _ITEM),
        reference_name=np.append(graph.reference_name, name),
        reference_where=np.append(graph.reference_where, nothing),
        made_at={},
        comm_uses={},
        device={},
    )


def _reference(graph: HeapGraph, row: GainingContainer) -> str:
    """How its items are written: of an object that is not the first of its like all that it gains are attributes."""
    kind = graph.strings[graph.type[row.container]]
    if graph.kind[row.container] != KINDS.index(ObjectKind.CONTAINER):
        return "linked" if kind.rpartition(".")[2] == row.item else ".__dict__"
    kind = kind.lower()
    return "[...]" if "dict" in kind else "{...}" if "set" in kind else "[i]"


def _ints(values: Sequence[int]) -> Ints:
    return np.asarray(values, dtype=np.int64)
