"""Arrays, bytes, autograd nodes and Python objects, judged as storages are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leakscope.findings.facts import Beside, FreedBy, Severity
from leakscope.findings.model import Finding
from leakscope.graph.model import KINDS, REFERENCE_KINDS, HeapGraph, Ints, ObjectKind, ReferenceKind
from leakscope.run.model import Look, Rank
from leakscope.run.rows import GainingContainer, Occasion

_ARRAY = KINDS.index(ObjectKind.ARRAY)
_STORAGE = KINDS.index(ObjectKind.STORAGE)
_OTHER = KINDS.index(ObjectKind.NATIVE)


def array_bytes(look: Look) -> int:
    """Bytes of the living arrays that own memory."""
    graph = look.heap
    return int(graph.size[(graph.kind == _ARRAY) & (graph.freed == 0)].sum())


def with_arrays_for_storages(rank: Rank) -> Rank | None:
    """The rank as if arrays were what is looked for; None where they are as many bytes at every look, a data set's,
    say.
    """
    if len({array_bytes(look) for look in rank.looks}) <= 1:
        return None
    return replace(rank, looks=tuple(replace(look, heap=_of_arrays(look.heap)) for look in rank.looks))


def _of_arrays(graph: HeapGraph) -> HeapGraph:
    arrays, storages = graph.kind == _ARRAY, graph.kind == _STORAGE
    kind = np.where(arrays, _STORAGE, np.where(storages, _OTHER, graph.kind))
    return replace(graph, kind=kind, bytes=np.where(arrays, graph.size, 0), made_at={}, comm_uses={}, device={})


def of_arrays(finding: Finding, rank: int) -> Finding:
    """A finding made by the rules for tensors as one of arrays: none of its bytes are a storage's."""
    return replace(finding, noun=_noun(finding), count=0, storages={rank: ()})


def _noun(finding: Finding) -> str:
    kind = finding.trace[-1].type.rpartition(".")[2]
    return "numpy array" if kind == "ndarray" else f"{kind} object"


def beside_tensors(findings: Sequence[Finding], arrays: Finding) -> list[Finding]:
    """The findings of one rank with one of arrays: what a tensor's cut frees as well is said with that."""
    for place, finding in enumerate(findings):
        same = (
            finding.cut
            and arrays.cut
            and (finding.cut.written, finding.cut.where) == (arrays.cut.written, arrays.cut.where)
        )
        if (
            same
            and finding.freed_by == FreedBy.PROGRAM
            and (finding.severity == Severity.LEAK or arrays.severity == Severity.NOTE)
        ):
            beside = (*finding.beside, Beside(arrays.retained_bytes, arrays.noun))
            return [*findings[:place], replace(finding, beside=beside), *findings[place + 1 :]]
    return [*findings, arrays]


_NODE = KINDS.index(ObjectKind.GRAD_NODE)
_MEMORY = REFERENCE_KINDS.index(ReferenceKind.MEMORY)
_LABEL, _REFERENCE = "memory of a grad node", "memory"


def living_nodes(graph: HeapGraph) -> int:
    """How many grad nodes something alive keeps."""
    return int(((graph.kind == _NODE) & (graph.freed == 0)).sum())


def with_nodes_for_storages(rank: Rank, looks: Sequence[Look], each: int) -> Rank | None:
    """The rank as if the memory of grad nodes, `each` bytes, were what is looked for; None where they are no more at
    the last of `looks` than at the first.
    """
    if not looks or living_nodes(looks[-1].heap) <= living_nodes(looks[0].heap):
        return None
    seen = {id(look) for look in looks}
    asked = [look for look in rank.looks if id(look) in seen or look.occasion == Occasion.END]
    return replace(rank, looks=tuple(replace(look, heap=_of_nodes(look.heap, each)) for look in asked))


def _of_nodes(graph: HeapGraph, each: int) -> HeapGraph:
    """The graph with a storage below each living grad node, behind all that it has, and none below its tensors."""
    nodes = np.flatnonzero((graph.kind == _NODE) & (graph.freed == 0))
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
