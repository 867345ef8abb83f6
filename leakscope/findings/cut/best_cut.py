"""Which one reference frees a group of storages? In a cycle, the same reference in each of its instances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakscope.findings.cut.multi_cut import FREED_THRESHOLD, minimal_cut
from leakscope.findings.cut.places import all_items, around_cycle, below_cycle, each_of_many, of_each_owner, on_path
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import Cut, CutReference
from leakscope.findings.naming.expressions import as_part_of_holder
from leakscope.findings.naming.trace import generic
from leakscope.graph.model import REFERENCE_KINDS, HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.retained import freed_storages

_HOOK = REFERENCE_KINDS.index(ReferenceKind.HOOK)
_CUT_ORDER = (
    ReferenceKind.CLOSURE,
    ReferenceKind.ATTRIBUTE,
    ReferenceKind.LOCAL,
    ReferenceKind.ITEM,
    ReferenceKind.BUFFER,
    ReferenceKind.HOOK,
    ReferenceKind.SAVED,
    ReferenceKind.OPERAND,
    ReferenceKind.UNNAMED,
    ReferenceKind.MEMORY,
    ReferenceKind.GRAD_GRAPH,
)
"""Of a cycle, where a person would cut first: what a line of the script writes, before what torch and C++ keep."""
_HIDDEN = 20
"""Added to the rank of a reference that no script writes: more than there are kinds."""


def best_cut(candidate: Candidate) -> tuple[Cut | None, dict[int, int], tuple[int, ...]]:
    """The one reference to cut; for each candidate reference the bytes its cut would free; the references cut.

    A cycle is cut at the same place in each of its instances.
    """
    many = each_of_many(candidate)
    if many and (size := _freed(candidate, many)) >= FREED_THRESHOLD * candidate.group.bytes:
        return _cut_of_one(candidate, many, size), {many[0]: size}, many
    several, held_by = minimal_cut(candidate, lambda references: _freed(candidate, [*many, *references]), many)
    if several:
        return _cut_of(candidate, several, held_by, many)
    positions = around_cycle(candidate) if candidate.group.freed != 0 else on_path(candidate)
    freed = [_freed(candidate, references) for references in positions]
    if candidate.group.freed != 0 and not any(freed):
        # it closes itself in more than one place: what it holds can still be taken away
        positions = below_cycle(candidate) or positions
        freed = [_freed(candidate, references) for references in positions]
    if not positions:
        return None, {}, ()
    most = max(freed)
    frees = {references[0]: size for references, size in zip(positions, freed, strict=True)}
    if most == 0 and candidate.group.freed != 0:
        return None, frees, ()
    if most == 0:  # something else has the memory as well: nothing to cut, but a name to tell
        named = [
            k
            for k, references in enumerate(positions)
            if generic(candidate.graph.reference(references[0]).name) != "[i]"
        ]
        return None, frees, positions[max(named, default=len(positions) - 1)]
    if candidate.group.freed == 0:
        best = max(k for k, size in enumerate(freed) if size >= FREED_THRESHOLD * most)
        in_many = _in_many_places(candidate, best, most)
        if in_many is not None:
            best, positions[best], freed[best] = in_many  # from left to right: `best` is the new one already
            frees[positions[best][0]] = freed[best]
    else:
        enough = [k for k, size in enumerate(freed) if size >= FREED_THRESHOLD * most]
        best = min(enough, key=lambda k: _cut_rank(candidate, positions[k][0]))
    reference = candidate.graph.reference(positions[best][0])
    if reference.kind == ReferenceKind.MEMORY and reference.name == "storage":
        return None, frees, ()  # nothing but the tensor itself: who holds the tensor could not be candidate
    filled = (
        candidate.references[best - 1].where
        if candidate.group.freed == 0 and best > 0 and reference.kind == ReferenceKind.ITEM
        else ""
    )
    return _cut_of_one(candidate, positions[best], freed[best], filled), frees, positions[best]


def _cut_of_one(candidate: Candidate, references: tuple[int, ...], frees: int, filled: str = "") -> Cut:
    """The cut of one reference, the same one in all of its places; `filled` is the line of what is put there."""
    first, many = references[0], candidate.group.many
    if many is not None and many.place:
        filled = candidate.references[many.place - 1].where
    line = candidate.line(first) or filled
    return Cut((CutReference(candidate.name(first), line, subject(candidate, first), references),), frees)


def _cut_of(
    candidate: Candidate, references: tuple[int, ...], held_by: Sequence[Candidate], many: tuple[int, ...]
) -> tuple[Cut, dict[int, int], tuple[int, ...]]:
    """As `best_cut`, for references that must be cut together, and `many` attributes beside them."""
    all_of_them = (*many, *references)
    total = _freed(candidate, all_of_them)
    first = _cut_of_one(candidate, many, total).references if many else ()
    named = tuple(
        CutReference(holder.name(r), holder.line(r), holder.written(r), (r,))
        for holder, r in zip(held_by, references, strict=True)
    )
    return Cut((*first, *named), total), {all_of_them[0]: total}, all_of_them


def _cut_rank(candidate: Candidate, reference: int) -> tuple[int, int]:
    r = candidate.graph.reference(reference)
    if _stores_what_refers_back(candidate, reference):
        return (-1, reference)
    hidden = r.name.startswith((".__", ".tb_", ".f_")) or candidate.graph.object(r.holder).type == "tuple"
    return (_CUT_ORDER.index(r.kind) + (_HIDDEN if hidden else 0), reference)


def _stores_what_refers_back(candidate: Candidate, reference: int) -> bool:
    """Whether the attribute of an object is a function whose closure holds that object: `self.act = lambda: self.x`."""
    graph = candidate.graph
    r = graph.reference(reference)
    if r.kind != ReferenceKind.ATTRIBUTE or r.name.startswith(".__"):
        return False
    if graph.object(r.held).kind != ObjectKind.FUNCTION or graph.object(r.holder).kind == ObjectKind.FUNCTION:
        return False
    return any(
        graph.held[back] == r.holder and graph.reference(back).kind == ReferenceKind.CLOSURE
        for back in graph.out_of(r.held).tolist()
    )


def _in_many_places(candidate: Candidate, best: int, most: int) -> tuple[int, tuple[int, ...], int] | None:
    """(Place on the path, references, bytes freed) of several references that say or free more than the one at `best`.

    No single one frees more than `most`.
    """
    each = of_each_owner(candidate, best)
    size = _freed(candidate, each) if each else 0
    if size >= FREED_THRESHOLD * most:
        return candidate.gaining - 1, each, size
    items = all_items(candidate) if most < FREED_THRESHOLD * candidate.group.bytes else ()
    size = _freed(candidate, items) if items else 0
    return (candidate.gaining, items, size) if most < FREED_THRESHOLD * size else None


def _freed(candidate: Candidate, references: Sequence[int]) -> int:
    """Bytes of the group that cutting the references would free, once the statements that run now are over."""
    cut = np.asarray(_with_other_owner(candidate.graph, references), dtype=np.int64)
    gone = freed_storages(candidate.graph, cut, later=True)
    mine = np.isin(gone, np.asarray(candidate.group.storages))
    return int(candidate.graph.bytes[gone[mine]].sum())


def _with_other_owner(graph: HeapGraph, references: Sequence[int]) -> list[int]:
    """The references, and beside one to a dict of hooks what else its owner has it by.

    Python and C++ count one reference each.
    """
    hooks = [r for r in references if graph.reference_kind[r] == _HOOK]
    return [
        *references,
        *(
            other
            for r in hooks
            for other in graph.out_of(int(graph.holder[r])).tolist()
            if graph.held[other] == graph.held[r]
        ),
    ]


def subject(candidate: Candidate, reference: int) -> str:
    """The reference as the user would write it."""
    if candidate.group.freed == 0:
        return candidate.written(reference)
    return as_part_of_holder(candidate.graph, reference)
