"""The reference, or the smallest set of references, whose removal frees a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from leakscope.findings.candidates import Candidate
from leakscope.findings.grouping import StorageGroup, holds_itself, name_on_cycle, reference_name
from leakscope.findings.model import Cut, CutReference, CycleReference, Hop, HopReason
from leakscope.findings.naming import as_part_of_holder, callable_of, generic, hops, is_hook, mask_ids, written_apart
from leakscope.graph.model import (
    KINDS,
    REACHABLE,
    REFERENCE_COLUMNS,
    REFERENCE_KINDS,
    TENSOR_KINDS,
    HeapGraph,
    Ints,
    ObjectKind,
    Reference,
    ReferenceKind,
)
from leakscope.graph.ownership import is_library_line
from leakscope.graph.paths import ShortestPaths, paths_from, paths_from_roots
from leakscope.graph.retained import GarbageAbove, freed_with_gc, freed_without, garbage_above
from leakscope.graph.walks import Mask

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
"""Order of references to cut: first those that script lines create, then those of torch and C++."""
_AFTER_CLOSURE = 0.5
"""Rank of a hook in its module's dict: `handle.remove()` removes it."""
_LATER = 0.5
"""Added for an attribute that holds a container (`.parent` refers back to one object, `.children` down to many), and
for an item of a possible namedtuple.
"""
_CHANGED_BY_ITEMS = ("list", "dict", "collections.OrderedDict", "collections.defaultdict", "collections.deque", "set")
_HIDDEN = 20
"""Added to the rank of a reference that no script writes: more than the number of kinds."""
_FIXED_NAMES = (".__self__", ".__func__", ".__closure__", ".__code__", ".__mro__", ".__base", ".tb_", ".f_", ".gi_")
"""Prefixes of attributes that Python does not allow to set."""
_FIXED_TYPES = ("tuple", "functools.partial")
"""Types whose objects are immutable."""
_FIXED_KINDS = (
    ReferenceKind.GRAD_GRAPH,
    ReferenceKind.SAVED,
    ReferenceKind.MEMORY,
    ReferenceKind.UNNAMED,
    ReferenceKind.OPERAND,
)


def cut_rank(graph: HeapGraph, reference: int) -> float:
    """Rank of a reference to cut; lower is preferred."""
    r = graph.reference(reference)
    if _stores_what_refers_back(graph, r):
        return -1
    if is_hook(graph, r):
        return _CUT_ORDER.index(ReferenceKind.CLOSURE) + _AFTER_CLOSURE
    hidden = r.name.startswith((".__", ".tb_", ".f_")) or graph.object(r.holder).type == "tuple" or _keeps_hooks(r)
    many = r.kind == ReferenceKind.ATTRIBUTE and graph.object(r.held).kind == ObjectKind.CONTAINER
    unknown = r.kind == ReferenceKind.ITEM and graph.object(r.holder).type not in _CHANGED_BY_ITEMS
    return _CUT_ORDER.index(r.kind) + (_LATER if many or unknown else 0) + (_HIDDEN if hidden else 0)


def is_cut_by_code(graph: HeapGraph, reference: int) -> bool:
    """Whether a line of Python can remove the reference, unlike that of a method to its object."""
    r = graph.reference(reference)
    fixed = r.kind in _FIXED_KINDS or r.name.startswith(_FIXED_NAMES) or _keeps_hooks(r)
    return not fixed and graph.object(r.holder).type not in _FIXED_TYPES


def _keeps_hooks(reference: Reference) -> bool:
    """Whether it is a module's own dict of hooks, `._forward_hooks` (torch/nn/modules/module.py)."""
    return reference.name.startswith("._") and reference.name.endswith("_hooks")


def _stores_what_refers_back(graph: HeapGraph, reference: Reference) -> bool:
    """Whether the attribute of an object is a function whose closure holds that object: `self.act = lambda: self.x`."""
    r = reference
    if r.kind != ReferenceKind.ATTRIBUTE or r.name.startswith(".__"):
        return False
    if graph.object(r.held).kind != ObjectKind.FUNCTION or graph.object(r.holder).kind == ObjectKind.FUNCTION:
        return False
    return any(
        graph.held[back] == r.holder and graph.reference(back).kind == ReferenceKind.CLOSURE
        for back in graph.out_of(r.held).tolist()
    )


_MAX_TRIED = 20_000
"""Choices compared before the best so far is used. Heuristic: tens of milliseconds."""


def smallest_hitting_set(sets: Sequence[Set[int]], cost: Mapping[int, Any], limit: int) -> tuple[int, ...] | None:
    """The fewest elements, at most `limit`, that hit every one of the sets; among equals those with the smallest
    highest cost. None if there are none.

    Exact: among elements of the same sets the cheapest stands for all. `cost` gives each a distinct key.
    """
    bits = _best_of_each_kind(sets, cost)
    everything = (1 << len(sets)) - 1
    best: list[tuple[Any, tuple[int, ...]]] = []
    tried = 0

    def choose(chosen: tuple[int, ...], hit: int, size: int) -> None:
        nonlocal tried
        tried += 1
        if hit == everything:
            best.append((sorted((cost[c] for c in chosen), reverse=True), tuple(sorted(chosen, key=cost.__getitem__))))
            return
        if len(chosen) == size or tried > _MAX_TRIED:
            return
        missed = next(k for k in range(len(sets)) if not hit >> k & 1)
        for element in sorted((e for e, b in bits.items() if b >> missed & 1), key=cost.__getitem__):
            choose((*chosen, element), hit | bits[element], size)

    for size in range(1, limit + 1):
        choose((), 0, size)
        if best:
            return min(best)[1]
    return None


def _best_of_each_kind(sets: Sequence[Set[int]], cost: Mapping[int, Any]) -> dict[int, int]:
    """Elements and the sets each is in, as bits: among those in the same or fewer sets, the cheapest."""
    elements = {element for among in sets for element in among}
    bits = {e: sum(1 << k for k, among in enumerate(sets) if e in among) for e in elements}
    kept: dict[int, int] = {}
    for element in sorted(bits, key=cost.__getitem__):
        mine = bits[element]
        if not any(mine & other == mine for other in kept.values()):
            kept[element] = mine
    return kept


MAX_REFERENCES = 4
"""Maximum references that a user can be asked to cut together."""
FREED_THRESHOLD = 0.9
"""Share of the memory from which a cut counts as freeing it: the last tensor may still be in use."""
_MAX_COMPARED = 200
"""Storages whose paths are compared."""
HELD_ELSEWHERE_SHARE = 0.5
"""A cut that frees less than this share of the memory leaves another holder."""

Freed = Callable[[Sequence[int]], int]


def minimal_cut(
    candidate: Candidate, freed: Freed, beside: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[Candidate, ...]]:
    """The fewest (references, candidate on each one's path).

    `freed` gives the bytes of the group that cutting references would free; `beside` are cut in any case. Empty if one
    cut is enough, if no other holder is found, or if cutting a few does not free it: each step's tensor may have its
    own holder.
    """
    group = candidate.group
    if group.freed != REACHABLE or group.roots > 1 or group.key.is_of_hooks or not _names_more(candidate, freed):
        return (), ()
    cuts: list[int] = []
    held_by: list[Candidate] = []
    compared = group.storages[:: -(-len(group.storages) // _MAX_COMPARED)]
    while len(cuts) < MAX_REFERENCES:
        rest, number = without(candidate.graph, [*beside, *cuts])
        paths = paths_from_roots(rest)
        below = paths.storages_below(rest, compared)
        path = tuple(int(number[reference]) for reference in paths.path_to(rest, _where_most_are(rest, paths, below)))
        if not path:
            return (), ()
        holder = replace(
            candidate, group=replace(group, start=int(candidate.graph.holder[path[0]]), path=path, many=None)
        )
        shared = _last_shared(holder, below, len(compared))
        if shared is None:
            return (), ()
        cuts.append(shared)
        held_by.append(holder)
        if freed(cuts) >= FREED_THRESHOLD * group.bytes:
            needed = those_needed(cuts, lambda some: freed(some) >= FREED_THRESHOLD * group.bytes)
            if len(cuts) + bool(beside) == 1:
                return (), ()
            return tuple(cuts[k] for k in needed), tuple(held_by[k] for k in needed)
    return (), ()


def those_needed(cuts: Sequence[int], is_enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """Positions of the cuts without which the others are not enough.

    A later one may make an earlier one superfluous.
    """
    places = list(range(len(cuts)))
    for place in range(len(cuts)):
        others = [k for k in places if k != place]
        if others and is_enough([cuts[k] for k in others]):
            places = others
    return places


def _names_more(candidate: Candidate, freed: Freed) -> bool:
    """Whether there is a name on the path below the last reference whose cut frees the memory: `.rows`, not `[i]`."""
    upto = candidate.group.path[: candidate.tensor_at]
    named = [reference for reference in upto if generic(candidate.graph.reference(reference).name) != "[i]"]
    return bool(named) and freed([named[-1]]) < HELD_ELSEWHERE_SHARE * candidate.group.bytes


def _where_most_are(graph: HeapGraph, paths: ShortestPaths, below: Mapping[int, int]) -> int:
    """The storage at the end of the path shared by most of them, at each branch; among equals the last but one.

    A particular one may be held by something that only the last has: `.val` beside `.sum` and `.avg`.
    """
    next_to: dict[int, list[int]] = {}
    for index in below:
        if (last := int(paths.last[index])) >= 0:
            next_to.setdefault(int(graph.holder[last]), []).append(index)
    starts = [index for index in below if paths.last[index] < 0]
    here = max(starts, key=lambda index: (below[index], -index))
    while here in next_to:
        turns = sorted(next_to[here], key=lambda index: (-below[index], -index))
        several = len(turns) > 1 and below[turns[0]] == below[turns[1]]  # the last one made may still be in use
        here = turns[1] if several else turns[0]
    return here


def _last_shared(candidate: Candidate, below: Mapping[int, int], count: int) -> int | None:
    """The last reference before the first tensor that is above most storages; None if they share none."""
    upto = candidate.group.path[: candidate.tensor_at]
    shared = [reference for reference in upto if 2 * below[int(candidate.graph.held[reference])] > count]
    return shared[-1] if shared else None


def without(graph: HeapGraph, references: Sequence[int]) -> tuple[HeapGraph, Ints]:
    """The graph without these references, and the original number of each of its references."""
    if not references:
        return graph, np.arange(len(graph.holder))
    kept = np.delete(np.arange(len(graph.holder)), references)
    return replace(graph, **{name: getattr(graph, name)[kept] for name in REFERENCE_COLUMNS}), kept


_MIN_USERS_SHARE = 0.5
"""Share of the group that the user's references free for the library's to be left out. Heuristic."""
_MAX_CYCLES = 60
"""Cycles examined before the search is given up: each takes a walk over the garbage. Heuristic."""
_CONTAINER = KINDS.index(ObjectKind.CONTAINER)
_ITEM = REFERENCE_KINDS.index(ReferenceKind.ITEM)
_HOOK = REFERENCE_KINDS.index(ReferenceKind.HOOK)

Name = tuple[str, ...]


@dataclass(frozen=True)
class _Alike:
    """Groups references that a user would call one reference: the same name in objects of the same name."""

    of: dict[int, int]
    """Number of the group of each reference on a cycle."""
    members: tuple[tuple[int, ...], ...]
    names: tuple[Name, ...]


def closing_references(graph: HeapGraph, group: StorageGroup) -> tuple[tuple[int, ...], ...]:
    """The fewest references without which no cycle retains the group, each in all instances.

    They are on the cycles that lead to the group's storages, at most four; among equals those that a user would cut
    first. Those that no code can cut are used only if no others work. Empty if no four free it.
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
    above: GarbageAbove, graph: HeapGraph, group: StorageGroup, alike: _Alike, any_at_all: bool
) -> tuple[tuple[int, ...], ...]:
    """Find a cycle that still retains something, then the smallest choice that cuts every cycle seen or the path below
    it, in turn.

    Whatever frees the group does so too: the first choice that frees it is a smallest one.
    """
    storages = np.searchsorted(above.objects, np.asarray(group.storages))
    sizes = graph.bytes[np.asarray(group.storages)]
    cost: dict[int, tuple[float, Name]] = {}
    seen: list[frozenset[int]] = []
    chosen: tuple[int, ...] = ()
    for _ in range(_MAX_CYCLES):
        cut = _mask_of(above, graph, alike, chosen)
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
    above: GarbageAbove, graph: HeapGraph, group: StorageGroup, alike: _Alike, chosen: Sequence[int]
) -> Sequence[int]:
    """The references that do not belong to a library, if they free most of the group alone.

    What a frame of torch holds once, in the first step, cannot be cut.
    """

    def librarys(number: int) -> bool:
        holder = int(graph.holder[above.references[alike.members[number][0]]])
        return is_library_line(graph.object(holder).where)

    own = [number for number in chosen if not librarys(number)]
    if not own or len(own) == len(chosen):
        return chosen
    storages = np.searchsorted(above.objects, np.asarray(group.storages))
    kept = above.left(_mask_of(above, graph, alike, own)).kept[storages]
    sizes = graph.bytes[np.asarray(group.storages)]
    return own if sizes[~kept].sum() >= _MIN_USERS_SHARE * sizes.sum() else chosen


def _mask_of(above: GarbageAbove, graph: HeapGraph, alike: _Alike, chosen: Sequence[int]) -> Mask:
    """Mask of the chosen references and, for one to a dict of hooks, of its owner's other references to it: Python and
    C++ have one each.
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
    """Whether the reference is one by which a class refers to itself."""
    return holds_itself(graph, int(graph.holder[reference])) or holds_itself(graph, int(graph.held[reference]))


def _alike(above: GarbageAbove, graph: HeapGraph, inner: Sequence[int], exactly: bool) -> _Alike:
    """Group by referrer or, if not `exactly`, by name alone, whatever the class."""
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
    """What a reference has in common with those of the same name."""
    r = graph.reference(reference)
    holder, held = (mask_ids(graph.object(index).name) for index in (r.holder, r.held))
    if exactly:
        return (r.kind, name_on_cycle(r.name), holder, held, *owner)
    if r.kind == ReferenceKind.ATTRIBUTE:
        return (r.kind, name_on_cycle(r.name))
    if is_hook(graph, r):
        held = mask_ids(callable_of(graph, r.held).name)
    return (r.kind, reference_name(r.name, literal=False), holder, held)


def _owners(above: GarbageAbove, graph: HeapGraph) -> dict[int, Name]:
    """The owner of each container on a cycle and its name: the first of its owners by name."""
    owners: dict[int, Name] = {}
    of_containers = above.inner & (graph.kind[above.objects[above.held]] == _CONTAINER)
    for here in np.flatnonzero(of_containers).tolist():
        held = int(above.held[here])
        r = graph.reference(int(above.references[here]))
        owner = (mask_ids(graph.object(r.holder).name), reference_name(r.name, literal=False))
        owners[held] = min(owners.get(held, owner), owner)
    return owners


_MAX_INSTANCES = 4000
"""Similar cycles or paths cut at the same place, the last ones: more do not change the reported share."""


def references_on_path(candidate: Candidate) -> list[tuple[int, ...]]:
    """References from the root to the first tensor, or to its hooks; one more if the root holds the tensor itself.

    For accumulated calls of one function, the same reference in each of them.
    """
    hooks = (
        [k + 1 for k, r in enumerate(candidate.references) if r.kind == ReferenceKind.HOOK]
        if candidate.group.key.is_of_hooks
        else []
    )
    path = candidate.group.path[: max(candidate.tensor_at, 1, *hooks)]
    if candidate.group.roots <= 1 or not path:
        return [(reference,) for reference in path]
    return _same_on_paths(candidate, paths_from_roots(candidate.graph), path)


def of_each_owner(candidate: Candidate, position: int) -> tuple[int, ...]:
    """The attribute that holds a growing container, in every object like its owner; the items of a list or dict with
    several such containers that does not grow itself.

    Used if a cut at `position` of the path would remove all those owners: `model[i].seen`, not `model`.
    """
    place, graph = candidate.gaining - 1, candidate.graph
    if not position < place < candidate.tensor_at or candidate.group.roots > 1:
        return ()
    kind = graph.reference(candidate.group.path[place]).kind
    if kind != ReferenceKind.ATTRIBUTE and (kind != ReferenceKind.ITEM or candidate.above_gains):
        return ()
    upto, paths = candidate.group.path[: place + 1], paths_from_roots(graph)
    names = candidate.group.key.names(graph, upto)
    each = {upto[-1]: None}
    for storage in candidate.group.storages[-_MAX_INSTANCES:]:
        path = paths.path_to(graph, storage)[: place + 1]
        if path and path[-1] not in each and candidate.group.key.names(graph, path) == names:
            each[path[-1]] = None
    return tuple(each)


def all_items(candidate: Candidate) -> tuple[int, ...]:
    """All items of the growing container, that on the path first.

    Emptying it frees what refers back to the container, as the frames of exceptions in it do.
    """
    place, graph = candidate.gaining, candidate.graph
    if (
        place < 0
        or place >= candidate.tensor_at
        or candidate.group.roots > 1
        or candidate.references[place].kind != ReferenceKind.ITEM
    ):
        return ()
    item = candidate.references[place]
    items = graph.out_of(item.holder).tolist()
    name = candidate.group.key.names(graph, [item.index])
    alike = [r for r in items if r != item.index and candidate.group.key.names(graph, [r]) == name]
    return (item.index, *alike[-_MAX_INSTANCES:])


def each_of_many(candidate: Candidate) -> tuple[int, ...]:
    """Every attribute by which a holder has what it gains, that on the path first: `net.client0`, `net.client1`, ...

    If there are several such holders, those of each.
    """
    many, graph = candidate.group.many, candidate.graph
    if many is None:
        return ()
    paths = paths_from_roots(graph)
    each = {candidate.group.path[many.place]: None}
    for storage in candidate.group.storages[-_MAX_INSTANCES:]:
        path = paths.path_to(graph, storage)
        gained = next((r for r in path if graph.reference(r).name in many.names), None)
        if gained is not None:
            each[gained] = None
    return tuple(each)


def around_cycle(candidate: Candidate) -> list[tuple[int, ...]]:
    """For each place on the cycle, that reference in every instance; empty for a class that refers to itself."""
    first = candidate.group.cycles[0] if candidate.group.cycles else ()
    if not first or holds_itself(candidate.graph, int(candidate.graph.holder[first[0]])):
        return []
    same = [c for c in candidate.group.cycles if len(c) == len(first)][:_MAX_INSTANCES]
    return [tuple(cycle[k] for cycle in same) for k in range(len(first))]


def below_cycle(candidate: Candidate) -> list[tuple[int, ...]]:
    """For each place on the path from the cycle to the first tensor, that reference in every instance."""
    around = np.asarray([r for cycle in candidate.group.cycles[:_MAX_INSTANCES] for r in cycle], dtype=np.int64)
    if len(around) == 0:
        return []
    paths = paths_from(candidate.graph, np.unique(candidate.graph.holder[around]))
    down = paths.path_to(candidate.graph, int(candidate.graph.held[candidate.group.path[-1]]))
    tensor = next(
        (k for k, r in enumerate(down) if candidate.graph.object(int(candidate.graph.held[r])).kind in TENSOR_KINDS),
        len(down) - 1,
    )
    return _same_on_paths(candidate, paths, down[: tensor + 1])


def _same_on_paths(candidate: Candidate, paths: ShortestPaths, first: Sequence[int]) -> list[tuple[int, ...]]:
    """For each reference of one path, that reference on one path of the same names from every other start."""
    graph = candidate.graph
    names = candidate.group.key.names(graph, first)
    same = {int(graph.holder[first[0]]): first}
    for storage in candidate.group.storages[-_MAX_INSTANCES:]:
        path = paths.path_to(graph, storage)[: len(first)]
        if candidate.group.key.names(graph, path) == names:
            same.setdefault(int(graph.holder[path[0]]), path)
    return [tuple(path[k] for path in same.values()) for k in range(len(first))]


def trace_of(candidate: Candidate, cut: Cut | None, frees: dict[int, int]) -> tuple[Hop, ...]:
    """The path from the root, or once around the cycle, down to the typical storage.

    `frees` maps references to the bytes their cut would free; everything below the cut is leaked.
    """
    return _from_root(candidate, cut, frees) if candidate.group.freed == REACHABLE else _from_cycle(candidate, frees)


def _from_root(candidate: Candidate, cut: Cut | None, frees: dict[int, int]) -> tuple[Hop, ...]:
    group = candidate.group
    instances = cut.references[0].indexes if cut else ()
    # without a cut, the container that gained it leaks, whatever else holds it
    uncut = candidate.tensor_at if candidate.gaining < 0 else min(candidate.gaining, candidate.tensor_at)
    leaked_from = next((k + 1 for k, r in enumerate(group.path) if r in instances), uncut)
    if cut is None:
        kept = HopReason.MORE_HOLDERS
    elif cut.also:
        kept = HopReason.ONLY_CUTS
    else:
        kept = HopReason.ONLY_CUT
    reasons = (HopReason.ABOVE_CUT, kept)
    return hops(candidate.graph, group.start, group.path, leaked_from, frees, reasons, candidate.names)


def path_over(holder: Candidate, reference: int) -> tuple[Hop, ...]:
    """The path from a root through a reference to cut that is not on the trace; everything below it is leaked."""
    group = holder.group
    leaked_from = group.path.index(reference) + 1
    reasons = (HopReason.ABOVE_CUT, HopReason.ONLY_CUTS)
    return hops(holder.graph, group.start, group.path, leaked_from, {}, reasons, holder.names)


def _from_cycle(candidate: Candidate, frees: dict[int, int]) -> tuple[Hop, ...]:
    graph, group = candidate.graph, candidate.group
    cycle = group.cycles[0] if group.cycles else ()
    start = int(graph.holder[cycle[0]]) if cycle else group.start
    around = hops(graph, start, cycle, 0, frees, (None, HopReason.CYCLE_ITSELF))
    down = hops(graph, group.start, group.path, 0, frees, (None, HopReason.HELD_BY_CYCLE))
    on_cycle = {int(graph.held[r]) for r in cycle}
    storage_in_reach = group.start in on_cycle and (len(group.path) <= 1 or len(cycle) == 1)
    return around[:-1] + down if storage_in_reach and cycle and group.start == start else around + down


def on_trace(cut: Cut, trace: tuple[Hop, ...]) -> Cut:
    """The cut, with the position of each of its references on the trace."""

    def position(reference: CutReference) -> int | None:
        instances = frozenset(reference.indexes)
        return next((place for place, hop in enumerate(trace) if not instances.isdisjoint(hop.references)), None)

    return replace(cut, references=tuple(replace(r, trace=position(r)) for r in cut.references))


def cycle_of(candidate: Candidate) -> tuple[CycleReference, ...]:
    """The references of the candidate's smallest cycle; empty without one."""
    graph = candidate.graph
    around = [graph.reference(r) for r in (candidate.group.cycles[0] if candidate.group.cycles else ())]
    return tuple(
        CycleReference(
            graph.object(r.holder).label, generic(r.name), graph.object(r.held).label, r.holder, r.index, r.held
        )
        for r in around
    )


class BestCut(NamedTuple):
    """What to cut to free a group."""

    cut: Cut | None
    """The references to cut; None if no cut frees the group."""
    frees: dict[int, int]
    """Bytes that cutting each candidate reference frees."""
    references: tuple[int, ...]
    """The references of the cut; without a cut, that of the holder to report."""


FreedBytes = Callable[[Candidate, Sequence[int]], int]
"""Function that gives the bytes of a candidate's group freed by cutting references."""


def best_cut(candidate: Candidate) -> BestCut:
    """The reference to cut, or the smallest set of references if one is not enough.

    A cycle is cut at the same places in each of its instances, and on its own references, never below them.
    """
    return _best_of_cycle(candidate) if candidate.group.freed != REACHABLE else _best_of_path(candidate)


def best_cut_with_gc(candidate: Candidate) -> Cut | None:
    """The best cut of reachable memory if a full collection follows."""
    return _best_on_path(candidate, _freed_with_gc).cut


def _best_of_cycle(candidate: Candidate) -> BestCut:
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
        return BestCut(None, frees, below[-1] if below else ())
    first = {k: positions[k][0] for k in enough}
    best = min(
        enough,
        key=lambda k: (not is_cut_by_code(graph, first[k]), cut_rank(graph, first[k]), subject(candidate, first[k])),
    )
    return BestCut(_cut_of_one(candidate, positions[best], freed[best]), frees, positions[best])


def _best_of_path(candidate: Candidate) -> BestCut:
    """What frees it at once; if that is little, what releases everything that a container has gained, for gc to free.

    Items that are cycles themselves, such as modules with hooks, outlive the list that held them.
    """
    at_once = _best_on_path(candidate, _freed)
    size = at_once.cut.frees_bytes if at_once.cut is not None else 0
    if candidate.gaining < 0 or size >= HELD_ELSEWHERE_SHARE * candidate.group.bytes:
        return at_once
    cut, frees, references = _best_on_path(candidate, _freed_with_gc)
    above = candidate.group.path[: max(candidate.gaining - 1, 0)]
    if cut is None or references[0] in above or size >= FREED_THRESHOLD * cut.frees_bytes:
        return at_once
    return BestCut(replace(cut, after_gc=True), at_once.frees | {references[0]: frees[references[0]]}, references)


def _best_on_path(candidate: Candidate, freed_of: FreedBytes) -> BestCut:
    """The cut on the path from the root, according to `freed_of`."""
    many = each_of_many(candidate)
    if many and (size := freed_of(candidate, many)) >= FREED_THRESHOLD * candidate.group.bytes:
        return BestCut(_cut_of_one(candidate, many, size), {many[0]: size}, many)
    several, held_by = minimal_cut(candidate, lambda references: freed_of(candidate, [*many, *references]), many)
    if several:
        return _cut_of_several(candidate, several, held_by, many, freed_of)
    positions = references_on_path(candidate)
    freed = [freed_of(candidate, references) for references in positions]
    if not positions:
        return BestCut(None, {}, ())
    most = max(freed)
    frees = {references[0]: size for references, size in zip(positions, freed, strict=True)}
    if most == 0:  # something else holds the memory too: there is no cut, but a name to report
        named = [
            k
            for k, references in enumerate(positions)
            if generic(candidate.graph.reference(references[0]).name) != "[i]"
        ]
        return BestCut(None, frees, positions[max(named, default=len(positions) - 1)])
    if candidate.callback is not None and freed[0] >= FREED_THRESHOLD * most:
        return BestCut(_cut_of_one(candidate, positions[0], freed[0]), frees, positions[0])
    best = max(k for k, size in enumerate(freed) if size >= FREED_THRESHOLD * most)
    in_many = _in_many_places(candidate, best, most, freed_of)
    if in_many is not None:
        best, references, size = in_many
        positions[best], freed[best] = references, size
        frees[positions[best][0]] = freed[best]
    reference = candidate.graph.reference(positions[best][0])
    if reference.kind == ReferenceKind.MEMORY and reference.name == "storage":
        return BestCut(None, frees, ())  # only the tensor itself: its holder could not be a candidate
    filled = candidate.references[best - 1].where if best > 0 and reference.kind == ReferenceKind.ITEM else ""
    return BestCut(_cut_of_one(candidate, positions[best], freed[best], filled), frees, positions[best])


def _cut_of_one(candidate: Candidate, references: tuple[int, ...], frees: int, filled: str = "") -> Cut:
    """The cut of one reference, the same one in all its places; `filled` is the line that fills it."""
    first, many = references[0], candidate.group.many
    if many is not None and many.place:
        filled = candidate.references[many.place - 1].where
    line = candidate.line(first) or filled
    key = candidate.key(first)
    return Cut((CutReference(candidate.name(first), line, subject(candidate, first), references, key=key),), frees)


def _cut_together(candidate: Candidate, together: tuple[tuple[int, ...], ...], frees: dict[int, int]) -> BestCut:
    """The cut of references of cycles, each the same in every instance; the one on the trace is first."""
    shown = frozenset(candidate.group.cycles[0] if candidate.group.cycles else ())
    in_order = sorted(together, key=shown.isdisjoint)
    named = []
    for each, written in zip(
        in_order, written_apart(candidate.graph, [each[0] for each in in_order], candidate.names), strict=True
    ):
        on_trace = sorted(each, key=lambda r: r not in shown)
        name, line, key = candidate.name(each[0]), candidate.line(each[0]), candidate.key(each[0])
        named.append(CutReference(name, line, written, tuple(on_trace), key=key))
    references = tuple(r for cut in named for r in cut.indexes)
    total = _freed(candidate, references)
    return BestCut(Cut(tuple(named), total), frees | {references[0]: total}, references)


def _cut_of_several(
    candidate: Candidate,
    references: tuple[int, ...],
    held_by: Sequence[Candidate],
    many: tuple[int, ...],
    freed_of: FreedBytes,
) -> BestCut:
    """As `best_cut`, for references that must be cut together, and `many` attributes beside them."""
    all_of_them = (*many, *references)
    total = freed_of(candidate, all_of_them)
    first = _cut_of_one(candidate, many, total).references if many else ()
    named: dict[tuple[str, str, str, int], CutReference] = {}
    for holder, r in zip(held_by, references, strict=True):
        written = holder.written(r)
        # a global of a spawned script exists twice, and is written once
        own = (holder.name(r), holder.line(r), written, -1 if written.isidentifier() else r)
        before = named[own].indexes if own in named else ()
        path = () if r in candidate.group.path else path_over(holder, r)
        named[own] = CutReference(*own[:3], (*before, r), path=path, key=holder.key(r))
    return BestCut(Cut((*first, *named.values()), total), {all_of_them[0]: total}, all_of_them)


def _in_many_places(
    candidate: Candidate, best: int, most: int, freed_of: FreedBytes
) -> tuple[int, tuple[int, ...], int] | None:
    """(Position on the path, references, bytes freed) of several references that name or free more than the one at
    `best`.

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
    """Bytes of the group freed by cutting the references, after the running statements have ended."""
    cut = np.asarray(_with_other_owner(candidate.graph, references), dtype=np.int64)
    return _of_group(candidate, freed_without(candidate.graph, cut, later=True))


def _freed_with_gc(candidate: Candidate, references: Sequence[int]) -> int:
    """Bytes of the group freed by cutting the references and a full collection after it."""
    cut = np.asarray(_with_other_owner(candidate.graph, references), dtype=np.int64)
    return _of_group(candidate, freed_with_gc(candidate.graph, cut))


def _of_group(candidate: Candidate, gone: Mask) -> int:
    """Bytes of the group's freed storages."""
    mine = np.asarray(candidate.group.storages)
    return int(candidate.graph.bytes[mine[gone[mine]]].sum())


def _with_other_owner(graph: HeapGraph, references: Sequence[int]) -> list[int]:
    """The references and, for one to a dict of hooks, its owner's other references to it.

    Python and C++ have one reference each.
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
    """The reference as written in code; the callback itself if native code keeps one."""
    if candidate.callback is not None and int(candidate.graph.holder[reference]) == candidate.group.start:
        return candidate.callback.label
    if candidate.group.freed == REACHABLE:
        return candidate.written(reference)
    return as_part_of_holder(candidate.graph, reference, candidate.names)
