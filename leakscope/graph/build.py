"""How is a heap graph made of single objects and references?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from leakscope.graph.model import KINDS, REFERENCE_KINDS, ROOTS, HeapGraph, Ints, Object, Reference


def build(
    objects: Sequence[Object], references: Sequence[Reference], made_at: Mapping[int, str] | None = None
) -> HeapGraph:
    """A graph from single objects and references, in order; for small graphs and tests."""
    strings: dict[str, int] = {}

    def code(text: str) -> int:
        return strings.setdefault(text, len(strings))

    def column(values: Sequence[int]) -> Ints:
        return np.asarray(values, dtype=np.int64)

    return HeapGraph(
        type=column([code(o.type) for o in objects]),
        kind=column([KINDS.index(o.kind) for o in objects]),
        label=column([code(o.label) for o in objects]),
        name=column([code(o.name) for o in objects]),
        where=column([code(o.where) for o in objects]),
        bytes=column([o.bytes for o in objects]),
        size=column([o.size for o in objects]),
        root=column([ROOTS.index(o.root) for o in objects]),
        freed=column([o.freed for o in objects]),
        unexplained=column([o.unexplained for o in objects]),
        holder=column([r.holder for r in references]),
        held=column([r.held for r in references]),
        reference_kind=column([REFERENCE_KINDS.index(r.kind) for r in references]),
        reference_name=column([code(r.name) for r in references]),
        reference_where=column([code(r.where) for r in references]),
        strings=tuple(strings),
        made_at=dict(made_at or {}),
    )
