"""Which storages are held by the same thing? One look's storages, collected by their holder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from leakscope.findings.naming.trace import generic, key_of, literal_name, passes_through, without_ids, without_key
from leakscope.graph.cycles import Cycles, find_cycles, smallest_cycle
from leakscope.graph.model import IMMORTAL, KINDS, REFERENCE_KINDS, HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.once import once
from leakscope.graph.ownership import is_outside_users_files
from leakscope.graph.paths import ShortestPaths, paths_from, paths_from_roots

_HANDLES = (
    ObjectKind.METHOD,
    ObjectKind.FUNCTION,
    ObjectKind.INSTANCE,
    ObjectKind.NN_MODULE,
    ObjectKind.OPTIMIZER,
    ObjectKind.EXCEPTION,
    ObjectKind.FRAME,
    ObjectKind.GENERATOR,
    ObjectKind.FUTURE,
    ObjectKind.CONTAINER,
)
"""Where a person would take hold of a cycle: the kinds that the user's code names, best first."""

CYCLES = ("cycle", "immortal")
"""First part of the key of garbage: what gc frees, and what it never does."""
HOOKS = "hooks"
"""Last part of the key of what is held by the hooks of a tensor, not by its holder."""


@dataclass(frozen=True)
class OneOfMany:
    """The reference on a path that stands for all those like it on one holder, under names of their own."""

    place: int
    """Its position on the path."""
    name: str
    """Of all of them: `.client{i}`."""
    names: frozenset[str]
    """Those that are there."""
    holders: int = 1
    """Holders that have such names, where each gains the same."""


@dataclass(frozen=True)
class Group:
    """Storages with one holder in one look."""

    key: tuple[str, ...]
    start: int
    """The object the path begins at: a root, or an object of the cycle."""
    path: tuple[int, ...]
    """References from the start to a typical storage (the last one made)."""
    storages: tuple[int, ...]
    bytes: int
    freed: int
    """0 for live storages; else as `HeapGraph.freed`."""
    cycles: tuple[tuple[int, ...], ...] = field(default=())
    """The smallest cycle of each instance, as references; () for live storages."""
    roots: int = 0
    """How many roots the paths to live storages start from: each call of one function is a root of its own."""
    many: OneOfMany | None = None
    """Where the holder is gained by under ever new names."""


Key = tuple[str, ...]
Mask = Callable[[Key], Key]
"""Makes one key of those that only data tells apart."""


@dataclass(frozen=True)
class _Keyed:
    """The live storages of a graph by the key of what holds them, and what their groups are made of."""

    members: Mapping[Key, Sequence[int]]
    through: Sequence[bool]
    origins: Sequence[int]


@once
def group_storages(graph: HeapGraph) -> list[Group]:
    """Every storage of the graph in exactly one group, in the order of their indexes.

    Where one graph is all there is, no key of a dict is known to be more than data: items of one dict are one group.
    """
    return group_by(graph, lambda key: tuple(map(without_key, key)))


def group_by(graph: HeapGraph, mask: Mask) -> list[Group]:
    """The same, with the groups of live storages whose keys `mask` makes one as one."""
    return _live(graph, mask) + _garbage(graph)


def live_keys(graph: HeapGraph) -> frozenset[Key]:
    """Keys of the groups of live storages, with each string by which a dict has something."""
    return frozenset(_keyed(graph).members)


def _live(graph: HeapGraph, mask: Mask) -> list[Group]:
    paths, keyed = paths_from_roots(graph), _keyed(graph)
    members: dict[Key, list[int]] = {}
    for key, storages in keyed.members.items():
        members.setdefault(mask(key), []).extend(storages)
    groups = []
    for key, storages in members.items():
        storages.sort()
        # What hangs behind a graph and what does not may share a holder: the heavier kind tells the story.
        behind = [s for s in storages if keyed.through[s]]
        heavier = behind if 2 * _bytes(graph, behind) > _bytes(graph, storages) else storages
        typical = _typical(graph, heavier)
        down = tuple(paths.path_to(graph, typical))
        roots = len({keyed.origins[s] for s in storages})
        size = _bytes(graph, storages)
        groups.append(Group(key, keyed.origins[typical], down, tuple(storages), size, 0, roots=roots))
    return groups


@once
def _keyed(graph: HeapGraph) -> _Keyed:
    paths = paths_from_roots(graph)
    entries, through, hooked, origins = _entries(graph, paths)
    keys: dict[int, Key] = {}
    shared: dict[tuple[object, ...], Key] = {}
    members: dict[Key, list[int]] = {}
    for storage in graph.storages.tolist():
        if graph.freed[storage] == 0 and np.isfinite(paths.cost[storage]):
            entry = entries[storage] if entries[storage] >= 0 else storage
            if entry not in keys:
                last = int(paths.last[entry])
                like = (last, entry) if last < 0 else (int(graph.holder[last]), *_alike(graph, last, entry))
                if like not in shared:
                    shared[like] = key_of(graph, paths.start_of(graph, entry), paths.path_to(graph, entry))
                keys[entry] = shared[like]
            # what a tensor's hooks hold grows by itself, though the tensor is as it was
            key = (*keys[entry], HOOKS) if hooked[storage] else keys[entry]
            members.setdefault(key, []).append(storage)
    return _Keyed(members, through, origins)


def _alike(graph: HeapGraph, reference: int, held: int) -> tuple[object, ...]:
    """All that a key takes from the last reference of a path and what it holds: the items of one container share
    theirs.
    """
    name = literal_name(graph.strings[graph.reference_name[reference]])
    return int(graph.reference_kind[reference]), name, int(graph.kind[held]), int(graph.name[held])


def _entries(graph: HeapGraph, paths: ShortestPaths) -> tuple[list[int], list[bool], list[bool], list[int]]:
    """For each object the first tensor on its path that is held for its own sake (-1 without one), whether it leads
    through a grad graph, whether through a hook of that tensor, and the root it starts from.

    One pass in the order of the paths' costs: a chain of a million grad nodes costs a million steps, not their square.
    """
    of_tensor = np.isin(graph.kind, [KINDS.index(ObjectKind.TENSOR), KINDS.index(ObjectKind.PARAMETER)])
    tensors = of_tensor.tolist()
    attributes = (graph.reference_kind == REFERENCE_KINDS.index(ReferenceKind.ATTRIBUTE)) & of_tensor[graph.holder]
    passing = {r for r in np.flatnonzero(attributes).tolist() if passes_through(graph, r)}
    graphs = np.isin(
        graph.reference_kind,
        [REFERENCE_KINDS.index(ReferenceKind.GRAD_GRAPH), REFERENCE_KINDS.index(ReferenceKind.SAVED)],
    ).tolist()
    hooks = (graph.reference_kind == REFERENCE_KINDS.index(ReferenceKind.HOOK)).tolist()
    last, holder = paths.last.tolist(), graph.holder.tolist()
    entries, through, hooked, origins = (
        [-1] * len(graph),
        [False] * len(graph),
        [False] * len(graph),
        list(range(len(graph))),
    )
    for index in np.argsort(paths.cost, kind="stable").tolist():
        reference = last[index]
        if reference >= 0:
            before = holder[reference]
            entries[index] = -1 if entries[before] == before and reference in passing else entries[before]
            origins[index] = origins[before]
            through[index] = through[before] or graphs[reference]
            hooked[index] = hooked[before] or (hooks[reference] and entries[before] >= 0 and not through[before])
        if entries[index] < 0 and tensors[index]:
            entries[index] = index
    return entries, through, hooked, origins


def _typical(graph: HeapGraph, storages: Sequence[int]) -> int:
    """The largest storage, of several one whose making is known, the latest: the one whose trace tells most."""
    return max(storages, key=lambda s: (int(graph.bytes[s]), s in graph.made_at, s))


def _bytes(graph: HeapGraph, storages: Sequence[int]) -> int:
    return int(graph.bytes[np.asarray(storages, dtype=np.int64)].sum())


@once
def _garbage(graph: HeapGraph) -> list[Group]:
    dead = graph.storages[graph.freed[graph.storages] != 0]
    if len(dead) == 0:
        return []
    cycles = find_cycles(graph)
    closed = np.flatnonzero(cycles.cyclic[cycles.label] & (graph.freed != 0))
    paths = paths_from(graph, closed)
    instances: dict[int, list[int]] = {}
    for storage in dead.tolist():
        if np.isfinite(paths.cost[storage]):
            instances.setdefault(int(cycles.label[paths.start_of(graph, storage)]), []).append(storage)
    collected: dict[tuple[str, ...], list[tuple[tuple[int, ...], list[int]]]] = {}
    members = _members(cycles, instances)
    for component, storages in instances.items():
        cycle = _cycle(graph, cycles, members[component])
        immortal = any(graph.freed[s] == IMMORTAL for s in storages)
        key = (CYCLES[immortal], *_cycle_key(graph, cycle))
        collected.setdefault(key, []).append((cycle, storages))
    return [_garbage_group(graph, paths, key, alike) for key, alike in collected.items()]


def _members(cycles: Cycles, wanted: dict[int, list[int]]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {component: [] for component in wanted}
    for index in np.flatnonzero(np.isin(cycles.label, list(wanted))).tolist():
        members[int(cycles.label[index])].append(index)
    return members


def _cycle(graph: HeapGraph, cycles: Cycles, members: list[int]) -> tuple[int, ...]:
    """The smallest cycle through the object that a person would name: a class, where there is one, for it holds itself
    and all the rest whatever else is cut.
    """

    def rank(index: int) -> tuple[bool, bool, bool, int, int]:
        member = graph.object(index)
        order = _HANDLES.index(member.kind) if member.kind in _HANDLES else len(_HANDLES)
        inherent = holds_itself(graph, index)
        return (not inherent, is_outside_users_files(member.where), inherent and not member.where, order, index)

    for start in sorted(members, key=rank)[:8]:
        cycle = smallest_cycle(graph, cycles, start)
        if cycle:
            return tuple(cycle)
    return ()


def holds_itself(graph: HeapGraph, index: int) -> bool:
    """Whether an object is a class that is a cycle of its own: by its `__mro__`, and by the descriptors in its
    `__dict__`.
    """
    return graph.kind[index] == KINDS.index(ObjectKind.CLASS) and bool((graph.held[graph.out_of(index)] == index).any())


def _cycle_key(graph: HeapGraph, cycle: tuple[int, ...]) -> tuple[str, ...]:
    """What the user's code holds on the cycle; how many tensors and grad nodes lie between does not count."""
    plain = [
        r
        for r in cycle
        if graph.object(int(graph.holder[r])).kind
        not in (ObjectKind.GRAD_NODE, ObjectKind.TENSOR, ObjectKind.PARAMETER)
    ]
    parts: list[str] = []
    if all(graph.object(int(graph.holder[r])).kind == ObjectKind.CONTAINER for r in plain):
        # Which C++ reference hides the cycle tells cycles through nameless containers apart.
        parts += sorted(
            {
                without_ids(generic(graph.reference(r).name))
                for r in cycle
                if graph.reference(r).kind in (ReferenceKind.HOOK, ReferenceKind.SAVED)
            }
        )
    for reference in plain or cycle:
        r = graph.reference(reference)
        held = graph.object(r.held)
        name = (
            "tensor"
            if held.kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE) and plain
            else f"{held.kind}:{without_ids(held.name)}"
        )
        step = f"{without_ids(generic(r.name))} {name}"
        if step not in parts:
            parts.append(step)
    return tuple(sorted(parts))  # wherever on the cycle the walk began


def _garbage_group(
    graph: HeapGraph, paths: ShortestPaths, key: tuple[str, ...], instances: list[tuple[tuple[int, ...], list[int]]]
) -> Group:
    storages = [s for _, held in instances for s in held]
    cycle, last = instances[-1]
    typical = _typical(graph, last)
    freed = [int(graph.freed[s]) for s in storages]
    return Group(
        key=key,
        start=paths.start_of(graph, typical),
        path=tuple(paths.path_to(graph, typical)),
        storages=tuple(storages),
        bytes=_bytes(graph, storages),
        freed=IMMORTAL if IMMORTAL in freed else max(freed),
        cycles=tuple(c for c, _ in [(cycle, last), *instances[:-1]]),
    )


def together(same: Sequence[Group], graph: HeapGraph, key: Key, told: Group | None = None) -> Group:
    """Groups of one look as one of this key, with the path of `told`: of the most telling, where none is given."""
    if len(same) == 1:
        return replace(same[0], key=key)
    told = told or most_telling(same, graph)
    in_order = [told, *(group for group in same if group is not told)]
    freed = [group.freed for group in same]
    return replace(
        told,
        key=key,
        storages=tuple(storage for group in same for storage in group.storages),
        bytes=sum(group.bytes for group in same),
        freed=IMMORTAL if IMMORTAL in freed else max(freed),
        cycles=tuple(cycle for group in in_order for cycle in group.cycles),
        roots=len({group.start for group in same}) if all(g.roots <= 1 for g in same) else max(g.roots for g in same),
    )


def most_telling(groups: Sequence[Group], graph: HeapGraph) -> Group:
    """The group whose path leads to the largest storage, of several the latest."""
    return max(groups, key=lambda group: (int(graph.bytes[_end(group, graph)]), _end(group, graph)))


def _end(group: Group, graph: HeapGraph) -> int:
    return int(graph.held[group.path[-1]]) if group.path else group.start
