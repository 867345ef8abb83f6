"""Which references free a group of storages? In a cycle, the same ones in each of its instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from leakscope.findings.cut.closing import closing_references
from leakscope.findings.cut.cut_order import cut_rank, is_cut_by_code
from leakscope.findings.cut.multi_cut import FREED_THRESHOLD, HELD_ELSEWHERE_SHARE, minimal_cut
from leakscope.findings.cut.places import all_items, around_cycle, below_cycle, each_of_many, of_each_owner, on_path
from leakscope.findings.cut.trace import path_over
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import Cut, CutReference
from leakscope.findings.naming.expressions import as_part_of_holder, written_apart
from leakscope.findings.naming.trace import generic
from leakscope.graph.model import REFERENCE_KINDS, HeapGraph, ReferenceKind
from leakscope.graph.reach import Mask
from leakscope.graph.retained import freed_with_gc, freed_without

FreedOf = Callable[[Candidate, Sequence[int]], int]
"""Bytes of a candidate's group that cutting references would free."""

_HOOK = REFERENCE_KINDS.index(ReferenceKind.HOOK)


def best_cut(candidate: Candidate) -> tuple[Cut | None, dict[int, int], tuple[int, ...]]:
    """The references to cut, one where one is enough; for each candidate reference the bytes its cut would free; those
    that are cut or, where no cut frees anything, what holds it.

    A cycle is cut at the same places in each of its instances, and on its own references, never below them.
    """
    return _of_cycle(candidate) if candidate.group.freed != 0 else _of_path(candidate)


def best_cut_with_gc(candidate: Candidate) -> Cut | None:
    """The same of what is alive, where a full collection comes after the cut."""
    return _on_path(candidate, _freed_with_gc)[0]


def _of_cycle(candidate: Candidate) -> tuple[Cut | None, dict[int, int], tuple[int, ...]]:
    graph, group = candidate.graph, candidate.group
    positions = around_cycle(candidate)
    freed = [_freed(candidate, references) for references in positions]
    frees = {references[0]: size for references, size in zip(positions, freed, strict=True)}
    enough = [k for k, size in enumerate(freed) if size >= FREED_THRESHOLD * max(group.bytes, 1)]
    if not any(is_cut_by_code(graph, positions[k][0]) for k in enough):
        together = closing_references(graph, group)
        if together:
            return _cut_together(candidate, together, frees)
        enough = enough or [k for k, size in enumerate(freed) if size and size >= FREED_THRESHOLD * max(freed)]
    if not enough:
        below = below_cycle(candidate)
        return None, frees, below[-1] if below else ()
    first = {k: positions[k][0] for k in enough}
    best = min(
        enough,
        key=lambda k: (not is_cut_by_code(graph, first[k]), cut_rank(graph, first[k]), subject(candidate, first[k])),
    )
    return _cut_of_one(candidate, positions[best], freed[best]), frees, positions[best]


def _of_path(candidate: Candidate) -> tuple[Cut | None, dict[int, int], tuple[int, ...]]:
    """What frees it at once; where that is little, what lets go of all that a container has gained, for gc to free.

    Items that are cycles of their own, as modules with hooks are, outlive the list that they were in.
    """
    at_once = _on_path(candidate, _freed)
    size = at_once[0].frees_bytes if at_once[0] is not None else 0
    if candidate.gaining < 0 or size >= HELD_ELSEWHERE_SHARE * candidate.group.bytes:
        return at_once
    cut, frees, references = _on_path(candidate, _freed_with_gc)
    above = candidate.group.path[: max(candidate.gaining - 1, 0)]
    if cut is None or references[0] in above or size >= FREED_THRESHOLD * cut.frees_bytes:
        return at_once
    return replace(cut, after_gc=True), at_once[1] | {references[0]: frees[references[0]]}, references


def _on_path(candidate: Candidate, freed_of: FreedOf) -> tuple[Cut | None, dict[int, int], tuple[int, ...]]:
    """The cut on the way from the root, by what `freed_of` says that cutting references frees."""
    many = each_of_many(candidate)
    if many and (size := freed_of(candidate, many)) >= FREED_THRESHOLD * candidate.group.bytes:
        return _cut_of_one(candidate, many, size), {many[0]: size}, many
    several, held_by = minimal_cut(candidate, lambda references: freed_of(candidate, [*many, *references]), many)
    if several:
        return _cut_of(candidate, several, held_by, many, freed_of)
    positions = on_path(candidate)
    freed = [freed_of(candidate, references) for references in positions]
    if not positions:
        return None, {}, ()
    most = max(freed)
    frees = {references[0]: size for references, size in zip(positions, freed, strict=True)}
    if most == 0:  # something else has the memory as well: nothing to cut, but a name to tell
        named = [
            k
            for k, references in enumerate(positions)
            if generic(candidate.graph.reference(references[0]).name) != "[i]"
        ]
        return None, frees, positions[max(named, default=len(positions) - 1)]
    if candidate.callback is not None and freed[0] >= FREED_THRESHOLD * most:
        return _cut_of_one(candidate, positions[0], freed[0]), frees, positions[0]
    best = max(k for k, size in enumerate(freed) if size >= FREED_THRESHOLD * most)
    in_many = _in_many_places(candidate, best, most, freed_of)
    if in_many is not None:
        best, positions[best], freed[best] = in_many  # from left to right: `best` is the new one already
        frees[positions[best][0]] = freed[best]
    reference = candidate.graph.reference(positions[best][0])
    if reference.kind == ReferenceKind.MEMORY and reference.name == "storage":
        return None, frees, ()  # nothing but the tensor itself: who holds the tensor could not be candidate
    filled = candidate.references[best - 1].where if best > 0 and reference.kind == ReferenceKind.ITEM else ""
    return _cut_of_one(candidate, positions[best], freed[best], filled), frees, positions[best]


def _cut_of_one(candidate: Candidate, references: tuple[int, ...], frees: int, filled: str = "") -> Cut:
    """The cut of one reference, the same one in all of its places; `filled` is the line of what is put there."""
    first, many = references[0], candidate.group.many
    if many is not None and many.place:
        filled = candidate.references[many.place - 1].where
    line = candidate.line(first) or filled
    return Cut((CutReference(candidate.name(first), line, subject(candidate, first), references),), frees)


def _cut_together(
    candidate: Candidate, together: tuple[tuple[int, ...], ...], frees: dict[int, int]
) -> tuple[Cut, dict[int, int], tuple[int, ...]]:
    """The cut of references of cycles, each the same in every instance; that which the trace shows comes first."""
    shown = frozenset(candidate.group.cycles[0] if candidate.group.cycles else ())
    in_order = sorted(together, key=shown.isdisjoint)
    named = []
    for each, written in zip(
        in_order, written_apart(candidate.graph, [each[0] for each in in_order], candidate.names), strict=True
    ):
        on_trace = sorted(each, key=lambda r: r not in shown)
        named.append(CutReference(candidate.name(each[0]), candidate.line(each[0]), written, tuple(on_trace)))
    references = tuple(r for cut in named for r in cut.indexes)
    total = _freed(candidate, references)
    return Cut(tuple(named), total), frees | {references[0]: total}, references


def _cut_of(
    candidate: Candidate,
    references: tuple[int, ...],
    held_by: Sequence[Candidate],
    many: tuple[int, ...],
    freed_of: FreedOf,
) -> tuple[Cut, dict[int, int], tuple[int, ...]]:
    """As `best_cut`, for references that must be cut together, and `many` attributes beside them."""
    all_of_them = (*many, *references)
    total = freed_of(candidate, all_of_them)
    first = _cut_of_one(candidate, many, total).references if many else ()
    named: dict[tuple[str, str, str, int], CutReference] = {}
    for holder, r in zip(held_by, references, strict=True):
        written = holder.written(r)
        # a global of a spawned script is there twice, and written once
        own = (holder.name(r), holder.line(r), written, -1 if written.isidentifier() else r)
        before = named[own].indexes if own in named else ()
        path = () if r in candidate.group.path else path_over(holder, r)
        named[own] = CutReference(*own[:3], (*before, r), path=path)
    return Cut((*first, *named.values()), total), {all_of_them[0]: total}, all_of_them


def _in_many_places(
    candidate: Candidate, best: int, most: int, freed_of: FreedOf
) -> tuple[int, tuple[int, ...], int] | None:
    """(Place on the path, references, bytes freed) of several references that say or free more than the one at `best`.

    No single one frees more than `most`.
    """
    each = of_each_owner(candidate, best)
    size = freed_of(candidate, each) if each else 0
    if size >= FREED_THRESHOLD * most:
        return candidate.gaining - 1, each, size
    items = all_items(candidate) if most < FREED_THRESHOLD * candidate.group.bytes else ()
    size = freed_of(candidate, items) if items else 0
    return (candidate.gaining, items, size) if most < FREED_THRESHOLD * size else None


def _freed(candidate: Candidate, references: Sequence[int]) -> int:
    """Bytes of the group that cutting the references would free, once the statements that run now are over."""
    cut = np.asarray(_with_other_owner(candidate.graph, references), dtype=np.int64)
    return _of_group(candidate, freed_without(candidate.graph, cut, later=True))


def _freed_with_gc(candidate: Candidate, references: Sequence[int]) -> int:
    """The same, with what a full collection would free after the cut."""
    cut = np.asarray(_with_other_owner(candidate.graph, references), dtype=np.int64)
    return _of_group(candidate, freed_with_gc(candidate.graph, cut))


def _of_group(candidate: Candidate, gone: Mask) -> int:
    """Bytes of the group's storages that are gone."""
    mine = np.asarray(candidate.group.storages)
    return int(candidate.graph.bytes[mine[gone[mine]]].sum())


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
    """The reference as the user would write it; the callback itself where native code keeps one."""
    if candidate.callback is not None and int(candidate.graph.holder[reference]) == candidate.group.start:
        return candidate.callback.label
    if candidate.group.freed == 0:
        return candidate.written(reference)
    return as_part_of_holder(candidate.graph, reference, candidate.names)
