"""Grad nodes that are kept: judged as tensors are, in the same graph, as the memory that each of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leakscope.graph.model import KINDS, REFERENCE_KINDS, HeapGraph, ObjectKind, ReferenceKind
from leakscope.record.kinds import Occasion
from leakscope.record.model import Look, Rank

_NODE, _STORAGE, _OTHER = (KINDS.index(k) for k in (ObjectKind.GRAD_NODE, ObjectKind.STORAGE, ObjectKind.NATIVE))
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
