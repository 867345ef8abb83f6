"""Which one reference frees a group of storages? In a cycle, the same reference in each of its instances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakscope.findings.cut.multi_cut import ENOUGH_SHARE, minimal_cut
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import HOOKS, holds_itself
from leakscope.findings.model import Cut, CutReference
from leakscope.findings.naming.expressions import as_part_of_holder
from leakscope.findings.naming.trace import generic, grouping
from leakscope.graph.model import REFERENCE_KINDS, HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.paths import Ways, ways_from, ways_from_roots
from leakscope.graph.retained import freed_storages

_MOST_INSTANCES = 4000
_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER)
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


def best_cut(found: Candidate) -> tuple[Cut | None, dict[int, int], tuple[int, ...]]:
    """The one reference to cut; for each candidate reference the bytes its cut would free; the references cut.

    A cycle is cut at the same place in each of its instances.
    """
    together, held_by = minimal_cut(found, lambda references: _freed(found, references))
    if together:
        return _cut_of(found, together, held_by)
    positions = _cycle_cuts(found) if found.group.freed != 0 else _way_cuts(found)
    freed = [_freed(found, references) for references in positions]
    if found.group.freed != 0 and not any(
        freed
    ):  # it closes itself in more than one place: what it holds can still be taken away
        positions = _down_cuts(found) or positions
        freed = [_freed(found, references) for references in positions]
    if not positions:
        return None, {}, ()
    most = max(freed)
    frees = {references[0]: size for references, size in zip(positions, freed, strict=True)}
    if most == 0 and found.group.freed != 0:
        return None, frees, ()
    if most == 0:  # something else has the memory as well: nothing to cut, but a name to tell
        named = [
            k for k, references in enumerate(positions) if generic(found.graph.reference(references[0]).name) != "[i]"
        ]
        return None, frees, positions[max(named, default=len(positions) - 1)]
    if found.group.freed == 0:
        best = max(k for k, size in enumerate(freed) if size >= ENOUGH_SHARE * most)
        several = _several(found, best, most)
        if several is not None:
            best, positions[best], freed[best] = several  # from left to right: `best` is the new one already
            frees[positions[best][0]] = freed[best]
    else:
        enough = [k for k, size in enumerate(freed) if size >= ENOUGH_SHARE * most]
        best = min(enough, key=lambda k: _cut_rank(found, positions[k][0]))
    reference = found.graph.reference(positions[best][0])
    if reference.kind == ReferenceKind.MEMORY and reference.name == "storage":
        return None, frees, ()  # nothing but the tensor itself: who holds the tensor could not be found
    filled = (
        found.references[best - 1].where
        if found.group.freed == 0 and best > 0 and reference.kind == ReferenceKind.ITEM
        else ""
    )
    cut = CutReference(
        found.name(reference.index),
        found.line(reference.index) or filled,
        subject(found, reference.index),
        positions[best],
    )
    return Cut((cut,), freed[best]), frees, positions[best]


def _cut_of(
    found: Candidate, references: tuple[int, ...], held_by: Sequence[Candidate]
) -> tuple[Cut, dict[int, int], tuple[int, ...]]:
    """As `best_cut`, for references that must be cut together."""
    total = _freed(found, references)
    named = tuple(
        CutReference(holder.name(r), holder.line(r), holder.written(r), (r,))
        for holder, r in zip(held_by, references, strict=True)
    )
    return Cut(named, total), {references[0]: total}, references


def _cut_rank(found: Candidate, reference: int) -> tuple[int, int]:
    r = found.graph.reference(reference)
    if _stores_what_refers_back(found, reference):
        return (-1, reference)
    hidden = r.name.startswith((".__", ".tb_", ".f_")) or found.graph.object(r.holder).type == "tuple"
    return (_CUT_ORDER.index(r.kind) + (20 if hidden else 0), reference)


def _stores_what_refers_back(found: Candidate, reference: int) -> bool:
    """Whether an object, no function, has by this attribute a function whose closure holds that object:
    `self.act = lambda: self.x`."""
    graph = found.graph
    r = graph.reference(reference)
    if r.kind != ReferenceKind.ATTRIBUTE or r.name.startswith(".__"):
        return False
    if graph.object(r.held).kind != ObjectKind.FUNCTION or graph.object(r.holder).kind == ObjectKind.FUNCTION:
        return False
    return any(
        graph.held[back] == r.holder and graph.reference(back).kind == ReferenceKind.CLOSURE
        for back in graph.out_of(r.held).tolist()
    )


def _way_cuts(found: Candidate) -> list[tuple[int, ...]]:
    """References from the root to the first tensor, or to its hooks; and one more where the tensor itself is the root's.

    Where calls of one function pile up, the same reference in each of them.
    """
    hooks = (
        [k + 1 for k, r in enumerate(found.references) if r.kind == ReferenceKind.HOOK]
        if found.group.key[-1] == HOOKS
        else []
    )
    way = found.group.way[: max(found.tensor_at, 1, *hooks)]
    if found.group.roots < 2 or not way:
        return [(reference,) for reference in way]
    return _same_on_ways(found, ways_from_roots(found.graph), way)


def _several(found: Candidate, best: int, most: int) -> tuple[int, tuple[int, ...], int] | None:
    """(Place on the way, references, bytes freed) of a cut of several references that says or frees more than the one at
    `best`; no one frees more than `most`."""
    each = _each_that_gains(found, best)
    size = _freed(found, each) if each else 0
    if size >= ENOUGH_SHARE * most:
        return found.gaining - 1, each, size
    items = _all_items(found) if most < ENOUGH_SHARE * found.group.bytes else ()
    size = _freed(found, items) if items else 0
    return (found.gaining, items, size) if most < ENOUGH_SHARE * size else None


def _each_that_gains(found: Candidate, position: int) -> tuple[int, ...]:
    """The attribute that holds a container which gains, in every object like its owner, where a cut at `position` of the
    way takes all those owners away: `model[i].seen`, not `model`."""
    place, graph = found.gaining - 1, found.graph
    if (
        not position < place < found.tensor_at
        or found.group.roots > 1
        or graph.reference(found.group.way[place]).kind != ReferenceKind.ATTRIBUTE
    ):
        return ()
    upto, ways = found.group.way[: place + 1], ways_from_roots(graph)
    names = [generic(graph.reference(r).name) for r in upto]
    each = {upto[-1]: None}
    for storage in found.group.storages[-_MOST_INSTANCES:]:
        way = ways.to(graph, storage)[: place + 1]
        if way[-1] not in each and [generic(graph.reference(r).name) for r in way] == names:
            each[way[-1]] = None
    return tuple(each)


def _all_items(found: Candidate) -> tuple[int, ...]:
    """All items of the container that gains, that on the way first: emptying it frees what leads back to the container
    itself, as the frames of the exceptions in it do."""
    place, graph = found.gaining, found.graph
    if (
        place < 0
        or place >= found.tensor_at
        or found.group.roots > 1
        or found.references[place].kind != ReferenceKind.ITEM
    ):
        return ()
    item = found.references[place]
    name = grouping(item.name)
    alike = [
        r for r in graph.out_of(item.holder).tolist() if r != item.index and grouping(graph.reference(r).name) == name
    ]
    return (item.index, *alike[-_MOST_INSTANCES:])


def _cycle_cuts(found: Candidate) -> list[tuple[int, ...]]:
    """For each place on the cycle, that reference in every instance of the same cycle; none where a class holds itself."""
    first = found.group.cycles[0] if found.group.cycles else ()
    if not first or holds_itself(found.graph, int(found.graph.holder[first[0]])):
        return []
    same = [c for c in found.group.cycles if len(c) == len(first)][:_MOST_INSTANCES]
    return [tuple(cycle[k] for cycle in same) for k in range(len(first))]


def _down_cuts(found: Candidate) -> list[tuple[int, ...]]:
    """For each place on the way from the cycle to the first tensor, that reference in every instance."""
    around = np.asarray([r for cycle in found.group.cycles[:_MOST_INSTANCES] for r in cycle], dtype=np.int64)
    if len(around) == 0:
        return []
    ways = ways_from(found.graph, np.unique(found.graph.holder[around]))
    down = ways.to(found.graph, int(found.graph.held[found.group.way[-1]]))
    tensor = next(
        (k for k, r in enumerate(down) if found.graph.object(int(found.graph.held[r])).kind in _TENSORS), len(down) - 1
    )
    return _same_on_ways(found, ways, down[: tensor + 1])


def _same_on_ways(found: Candidate, ways: Ways, first: Sequence[int]) -> list[tuple[int, ...]]:
    """For each reference of one way, that reference on one way of the same names from every other start."""
    graph = found.graph
    names = [grouping(graph.reference(r).name) for r in first]
    same = {int(graph.holder[first[0]]): first}
    for storage in found.group.storages[-_MOST_INSTANCES:]:
        way = ways.to(graph, storage)[: len(first)]
        if [grouping(graph.reference(r).name) for r in way] == names:
            same.setdefault(int(graph.holder[way[0]]), way)
    return [tuple(way[k] for way in same.values()) for k in range(len(first))]


def _freed(found: Candidate, references: Sequence[int]) -> int:
    """Bytes of the group that cutting the references would free, once the statements that run now are over."""
    cut = np.asarray(_with_other_owner(found.graph, references), dtype=np.int64)
    gone = freed_storages(found.graph, cut, later=True)
    mine = np.isin(gone, np.asarray(found.group.storages))
    return int(found.graph.bytes[gone[mine]].sum())


def _with_other_owner(graph: HeapGraph, references: Sequence[int]) -> list[int]:
    """The references, and beside one to a dict of hooks what else its owner has it by: Python and C++ count one each."""
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


def subject(found: Candidate, reference: int) -> str:
    """The reference as the user would write it."""
    if found.group.freed == 0:
        return found.written(reference)
    return as_part_of_holder(found.graph, reference)
