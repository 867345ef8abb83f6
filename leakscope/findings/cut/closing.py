"""Which references close the cycles that keep some garbage, as few as there are? Never one below the cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.findings.cut.cut_order import cut_rank, is_cut_by_code
from leakscope.findings.cut.hitting_set import smallest_hitting_set
from leakscope.findings.cut.multi_cut import FREED_THRESHOLD, MAX_REFERENCES
from leakscope.findings.grouping.groups import Group, holds_itself
from leakscope.findings.naming.expressions import callable_of, is_hook
from leakscope.findings.naming.trace import generic, group_name
from leakscope.graph.above import GarbageAbove, garbage_above
from leakscope.graph.model import KINDS, REFERENCE_KINDS, HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.ownership import is_library_line
from leakscope.graph.reach import Mask

_MOST = 0.5
"""Share of the group that the user's own references free for the library's to be left out; chosen."""
_MAX_CYCLES = 60
"""Cycles that are looked at before the search is given up: each takes a walk over the garbage. Chosen."""
_CONTAINER = KINDS.index(ObjectKind.CONTAINER)
_ITEM = REFERENCE_KINDS.index(ReferenceKind.ITEM)
_HOOK = REFERENCE_KINDS.index(ReferenceKind.HOOK)

Name = tuple[str, ...]


@dataclass(frozen=True)
class _Alike:
    """References by what a person would call one reference: the same name in objects of the same name."""

    of: dict[int, int]
    """Each reference on a cycle to the number of those it is like."""
    members: tuple[tuple[int, ...], ...]
    names: tuple[Name, ...]


def closing_references(graph: HeapGraph, group: Group) -> tuple[tuple[int, ...], ...]:
    """The fewest references without which no cycle keeps the group, each with the same one wherever it stands.

    They lie on the cycles that lead to the group's storages, four at most; of as many those that a person would cut
    first. Those that no code can cut are taken where no others do. Empty where no four free it.
    """
    above = garbage_above(graph, group.storages)
    inner = np.flatnonzero(above.inner).tolist()
    for alike in (_alike(above, graph, inner, exactly) for exactly in (True, False)):
        for any_at_all in (False, True):
            found = _search(above, graph, group, alike, any_at_all)
            if found:
                return found
    return ()


def _search(
    above: GarbageAbove, graph: HeapGraph, group: Group, alike: _Alike, any_at_all: bool
) -> tuple[tuple[int, ...], ...]:
    """A cycle that still keeps something is looked for, and the smallest choice that cuts each of those seen or the way
    down from it, in turn.

    Whatever frees the group does so too: the first choice that frees it is a smallest one.
    """
    storages = np.searchsorted(above.objects, np.asarray(group.storages))
    sizes = graph.bytes[np.asarray(group.storages)]
    cost: dict[int, tuple[float, Name]] = {}
    seen: list[frozenset[int]] = []
    chosen: tuple[int, ...] = ()
    for _ in range(_MAX_CYCLES):
        cut = _cut(above, graph, alike, chosen)
        left = above.left(cut)
        kept = left.kept[storages]
        if sizes[~kept].sum() >= FREED_THRESHOLD * sizes.sum():
            break
        choice = set()
        for here in filter(alike.of.__contains__, above.kept_by(left, cut, int(storages[kept][-1]))):
            reference, number = int(above.references[here]), alike.of[here]
            if _is_inherent(graph, reference) or not (any_at_all or is_cut_by_code(graph, reference)):
                continue
            choice.add(number)
            cost.setdefault(number, (cut_rank(graph, reference), alike.names[number]))
        seen.append(frozenset(choice))
        smallest = smallest_hitting_set(seen, cost, MAX_REFERENCES) if choice else None
        if smallest is None:
            return ()
        chosen = smallest
    else:
        return ()
    needed = _without_librarys(above, graph, group, alike, chosen)
    return tuple(tuple(int(above.references[m]) for m in alike.members[number]) for number in needed)


def _without_librarys(
    above: GarbageAbove, graph: HeapGraph, group: Group, alike: _Alike, chosen: Sequence[int]
) -> Sequence[int]:
    """Those of the references that are not a library's own, where they free most of the group without them.

    What a frame of torch's has once, in the first step, is nobody's to cut.
    """

    def librarys(number: int) -> bool:
        holder = int(graph.holder[above.references[alike.members[number][0]]])
        return is_library_line(graph.object(holder).where)

    own = [number for number in chosen if not librarys(number)]
    if not own or len(own) == len(chosen):
        return chosen
    storages = np.searchsorted(above.objects, np.asarray(group.storages))
    kept = above.left(_cut(above, graph, alike, own)).kept[storages]
    sizes = graph.bytes[np.asarray(group.storages)]
    return own if sizes[~kept].sum() >= _MOST * sizes.sum() else chosen


def _cut(above: GarbageAbove, graph: HeapGraph, alike: _Alike, chosen: Sequence[int]) -> Mask:
    """The references to cut, and beside one to a dict of hooks what else its owner has it by: Python and C++ count one
    each.
    """
    cut = np.zeros(len(above.references), dtype=bool)
    for number in chosen:
        cut[list(alike.members[number])] = True
    hooks = np.flatnonzero(cut & (graph.reference_kind[above.references] == _HOOK))
    if len(hooks):
        count = len(above.objects)
        pairs = above.holder * count + above.held
        cut |= np.isin(pairs, pairs[hooks])
    return cut


def _is_inherent(graph: HeapGraph, reference: int) -> bool:
    """Whether the reference is a class's own, by which it holds itself."""
    return holds_itself(graph, int(graph.holder[reference])) or holds_itself(graph, int(graph.held[reference]))


def _alike(above: GarbageAbove, graph: HeapGraph, inner: Sequence[int], exactly: bool) -> _Alike:
    """Told apart by what holds them, or not `exactly`: by the name alone, whichever class of object has it."""
    owners = _owners(above, graph) if exactly else {}
    references = above.references[np.asarray(inner, dtype=np.int64)]
    columns = (
        graph.reference_kind[references],
        graph.reference_name[references],
        graph.name[graph.holder[references]],
        graph.name[graph.held[references]],
        np.where((graph.reference_kind[references] == _ITEM) & (not exactly), graph.held[references], -1),
    )
    alike = zip(*(column.tolist() for column in columns), above.holder[inner].tolist(), strict=True)
    known: dict[tuple[object, ...], Name] = {}
    numbers: dict[Name, int] = {}
    members: list[list[int]] = []
    of: dict[int, int] = {}
    for here, reference, (*same, holder) in zip(inner, references.tolist(), alike, strict=True):
        owner = owners.get(holder, ())
        name = known.get((*same, owner))
        if name is None:
            name = known[(*same, owner)] = _name(graph, reference, owner, exactly)
        number = numbers.setdefault(name, len(numbers))
        if number == len(members):
            members.append([])
        members[number].append(here)
        of[here] = number
    return _Alike(of, tuple(map(tuple, members)), tuple(numbers))


def _name(graph: HeapGraph, reference: int, owner: Name, exactly: bool) -> Name:
    """What one reference shares with those that a person would call by one name."""
    r = graph.reference(reference)
    holder, held = graph.object(r.holder), graph.object(r.held)
    if exactly:
        return (r.kind, generic(r.name), holder.name, held.name, *owner)
    if r.kind == ReferenceKind.ATTRIBUTE:
        return (r.kind, generic(r.name))
    return (
        r.kind,
        group_name(r.name),
        holder.name,
        callable_of(graph, r.held).name if is_hook(graph, r) else held.name,
    )


def _owners(above: GarbageAbove, graph: HeapGraph) -> dict[int, Name]:
    """What has each container on a cycle, and by which name: the first of its owners by name."""
    owners: dict[int, Name] = {}
    of_containers = above.inner & (graph.kind[above.objects[above.held]] == _CONTAINER)
    for here in np.flatnonzero(of_containers).tolist():
        held = int(above.held[here])
        r = graph.reference(int(above.references[here]))
        owner = (graph.object(r.holder).name, group_name(r.name))
        owners[held] = min(owners.get(held, owner), owner)
    return owners
