"""Arrays, bytes, autograd nodes and Python objects, judged as storages are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leakscope.findings.model import Hop
from leakscope.graph.model import KINDS, REACHABLE, REFERENCE_KINDS, HeapGraph, Ints, ObjectKind, ReferenceKind
from leakscope.run.model import HeapSnapshot, Rank
from leakscope.run.rows import GainingContainer, Occasion

_ARRAY = KINDS.index(ObjectKind.ARRAY)
_STORAGE = KINDS.index(ObjectKind.STORAGE)
_OTHER = KINDS.index(ObjectKind.NATIVE)


def array_bytes(snapshot: HeapSnapshot) -> int:
    """Bytes of live arrays that own memory."""
    graph = snapshot.heap
    return int(graph.size[(graph.kind == _ARRAY) & (graph.freed == REACHABLE)].sum())


def with_arrays_for_storages(rank: Rank) -> Rank | None:
    """The rank with arrays in place of storages; None if their bytes are constant over the snapshots, like those of a
    data set.
    """
    if len({array_bytes(snapshot) for snapshot in rank.heap_snapshots}) <= 1:
        return None
    return replace(
        rank,
        heap_snapshots=tuple(replace(snapshot, heap=_of_arrays(snapshot.heap)) for snapshot in rank.heap_snapshots),
    )


def _of_arrays(graph: HeapGraph) -> HeapGraph:
    arrays, storages = graph.kind == _ARRAY, graph.kind == _STORAGE
    kind = np.where(arrays, _STORAGE, np.where(storages, _OTHER, graph.kind))
    return replace(graph, kind=kind, bytes=np.where(arrays, graph.size, 0), made_at={}, comm_uses={}, device={})


def noun_of_array(trace: Sequence[Hop]) -> str:
    """The kind of the memory at the end of a trace: `numpy array`, `bytes object`."""
    kind = trace[-1].type.rpartition(".")[2]
    return "numpy array" if kind == "ndarray" else f"{kind} object"


_NODE = KINDS.index(ObjectKind.GRAD_NODE)
_MEMORY = REFERENCE_KINDS.index(ReferenceKind.MEMORY)
_LABEL, _REFERENCE = "memory of a grad node", "memory"


def living_nodes(graph: HeapGraph) -> int:
    """Number of reachable grad nodes."""
    return int(((graph.kind == _NODE) & (graph.freed == REACHABLE)).sum())


def with_nodes_for_storages(rank: Rank, snapshots: Sequence[HeapSnapshot], each: int) -> Rank | None:
    """The rank with the memory of grad nodes, `each` bytes, in place of storages; None if there are no more at the last
    of `snapshots` than at the first.
    """
    if not snapshots or living_nodes(snapshots[-1].heap) <= living_nodes(snapshots[0].heap):
        return None
    seen = {id(snapshot) for snapshot in snapshots}
    chosen = [snapshot for snapshot in rank.heap_snapshots if id(snapshot) in seen or snapshot.occasion == Occasion.END]
    return replace(
        rank, heap_snapshots=tuple(replace(snapshot, heap=_of_nodes(snapshot.heap, each)) for snapshot in chosen)
    )


def _of_nodes(graph: HeapGraph, each: int) -> HeapGraph:
    """The graph with a storage below each live grad node, appended, and none below its tensors."""
    nodes = np.flatnonzero((graph.kind == _NODE) & (graph.freed == REACHABLE))
    count, first, text = len(nodes), len(graph), len(graph.strings)

    def more(column: Any, value: int) -> Any:
        return np.concatenate([column, np.full(count, value, dtype=np.int64)])

    label, nothing, name = text, text + 1, text + 2
    return replace(
        graph,
        strings=(*graph.strings, _LABEL, "", _REFERENCE),
        type=more(graph.type, label),
        kind=more(np.where(graph.kind == _STORAGE, _OTHER, graph.kind), _STORAGE),
        label=more(graph.label, label),
        name=more(graph.name, label),
        where=more(graph.where, nothing),
        bytes=more(np.zeros_like(graph.bytes), each),
        size=more(graph.size, -1),
        root=more(graph.root, 0),
        freed=more(graph.freed, 0),
        unexplained=more(graph.unexplained, 0),
        holder=np.concatenate([graph.holder, nodes]),
        held=np.concatenate([graph.held, np.arange(first, first + count)]),
        reference_kind=more(graph.reference_kind, _MEMORY),
        reference_name=more(graph.reference_name, name),
        reference_where=more(graph.reference_where, nothing),
        made_at={},
        comm_uses={},
        device={},
    )


_ITEM = REFERENCE_KINDS.index(ReferenceKind.ITEM)
_NAME = "objects"
"""Name of what stands for everything that a container has gained: it is part of the fingerprint, and types are not."""


def counted_objects_of(snapshot: HeapSnapshot) -> int:
    """Bytes of non-tensor objects gained since the process was first inspected, as `counted_of` returns them."""
    return sum(counted_of(snapshot, row) for row in snapshot.containers)


def counted_of(snapshot: HeapSnapshot, row: GainingContainer) -> int:
    """The part of a container's growth that the host's counter includes: it excludes Python's own arenas.

    All of it if a snapshot has no counted bytes.
    """
    return row.bytes if snapshot.counted_bytes is None else row.counted_bytes


def with_objects_for_storages(rank: Rank) -> Rank | None:
    """The rank with what containers have gained in place of storages; None if none of them gains any.

    Each snapshot's graph is extended by one object for each of its `containers`, in order.
    """
    if not any(snapshot.containers for snapshot in rank.heap_snapshots):
        return None
    return replace(
        rank,
        heap_snapshots=tuple(
            replace(snapshot, heap=_of_objects(snapshot.heap, snapshot.containers)) for snapshot in rank.heap_snapshots
        ),
    )


def row_of(snapshot: HeapSnapshot, storage: int) -> GainingContainer:
    """The container whose growth stands for a storage in a graph made by `with_objects_for_storages`."""
    return snapshot.containers[storage - (len(snapshot.heap) - len(snapshot.containers))]


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
    """How its items are written: for an object that is not the first of its kind, all that it gains are attributes."""
    kind = graph.strings[graph.type[row.container]]
    if graph.kind[row.container] != KINDS.index(ObjectKind.CONTAINER):
        return "linked" if kind.rpartition(".")[2] == row.item else ".__dict__"
    kind = kind.lower()
    return "[...]" if "dict" in kind else "{...}" if "set" in kind else "[i]"


def _ints(values: Sequence[int]) -> Ints:
    return np.asarray(values, dtype=np.int64)
