"""Groups the storages of a heap snapshot by their holder, and matches groups over snapshots."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile

import numpy as np

from leakscope.findings.growth import MIN_LOOKS, Series, series
from leakscope.findings.naming import (
    ANY_NUMBER,
    MODULE_DICTS,
    generic,
    is_literal_key,
    key_of,
    literal_name,
    numberless,
    part_of,
    passes_through,
    without_ids,
    without_key,
)
from leakscope.graph.model import IMMORTAL, KINDS, REFERENCE_KINDS, HeapGraph, ObjectKind, ReferenceKind, once
from leakscope.graph.ownership import is_outside_users_files
from leakscope.graph.paths import ShortestPaths, paths_from, paths_from_roots
from leakscope.graph.walks import Cycles, find_cycles, smallest_cycle
from leakscope.run.model import Look, Rank
from leakscope.run.rows import Occasion

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


Place = tuple[Key, str]
"""What names stand on, as the first parts of a key, and the kind and type of what they name."""

_ANY_NAME = ".{name}"
"""As in the f-string that makes such names."""
_SHARED = 2
"""Parts of a key that holders which gain the same names have in common: their root, and what hangs on it; chosen."""
_MANY = 4
"""Names without a number that must have come: two or three attributes may be made when they are first used; chosen."""
_KEYS = 8
"""Keys of one dict that a program writes out, heuristic: twice as many would make a finding each of the layers of a
small network, half as many would make one of the losses, metrics and counts of a usual history.
"""
_OF_PARAMETER = re.compile(r"[.'\"](weight|bias)(_\w+)?['\"]\]$")
"""A key that is a parameter's name, as `named_parameters()` gives it: `['0.weight']`, `['rnn.weight_ih_l0']`."""
_OF_MODULE = 2
"""Keys like that from which on a dict has the parameters of a module: one layer has a weight and a bias."""
_SIBLINGS = 4
"""Names at one look that differ by a number alone from which on they are counted, heuristic: a network may have two or
three encoders with a cycle each.
"""
_RISES = 2
"""Looks at which new ones must have come: what grows by them has risen so often."""


@dataclass(frozen=True)
class DataKeys:
    """The dicts whose keys are data: step numbers, ids, paths. In all others a key is a name that a program writes."""

    dicts: frozenset[Key] = frozenset()
    """What leads to each of them, as the first parts of a masked key."""

    def mask(self, key: Key) -> Key:
        """The key of a group without those strings that are data."""
        masked: list[str] = []
        for part in key:
            is_data = is_literal_key(part) and tuple(masked) in self.dicts
            masked.append(without_key(part) if is_data else part)
        return tuple(masked)


def data_keys(keys_at: Sequence[Collection[Key]]) -> DataKeys:
    """Which dicts' keys are data, by the keys of the groups of live storages at each look.

    Those of a dict that gains keys look after look, has more than a program writes out, or has a module's parameters by
    their names, as an average of weights does: the keys of `history` are `train` and `val` throughout.
    """
    known = DataKeys()
    literal = [{key for key in keys if any(map(is_literal_key, key[1:]))} for keys in keys_at]
    for place in range(1, max((len(key) for keys in literal for key in keys), default=0)):
        seen: dict[Key, list[set[str]]] = defaultdict(lambda: [set() for _ in literal])
        for at, keys in enumerate(literal):
            for key in keys:
                if len(key) > place and is_literal_key(key[place]):
                    seen[known.mask(key)[:place]][at].add(key[place])
        known = DataKeys(known.dicts | {above for above, names_at in seen.items() if _are_data(names_at)})
    return known


def _are_data(names_at: Sequence[set[str]]) -> bool:
    names = set().union(*names_at)
    if len(names) > _KEYS or _keep_coming(names_at):
        return True
    if sum(_OF_PARAMETER.search(name.rpartition(" ")[0]) is not None for name in names) >= _OF_MODULE:
        return True
    return len(names_at) < MIN_LOOKS and len({numberless(name) for name in names}) < len(names)


def _keep_coming(names_at: Sequence[Collection[object]]) -> bool:
    """Whether new ones come at two looks at least, and at most of those after the first that has any."""
    known: set[object] = set()
    came: list[bool] = []
    for names in names_at:
        came += [not known.issuperset(names)] if known else []
        known.update(names)
    return sum(came) >= _RISES and 2 * sum(came) > len(came)


@dataclass(frozen=True)
class DataNumbers:
    """The numbers in names that are data."""

    patterns: frozenset[Key] = frozenset()
    """Keys without numbers, of those that only such a number tells apart."""

    def mask(self, key: Key) -> Key:
        """The key of a group without those of its numbers that are data."""
        pattern = _pattern(key) if self.patterns else key
        return pattern if pattern in self.patterns else key


def data_numbers(keys_at: Sequence[Collection[Key]]) -> DataNumbers:
    """Which numbers in names are data, by the keys of all groups at each look.

    Those of what comes look after look, or of many at one look: `.layer1` and `.layer2`, which stay, are two
    attributes; `Head17` and `Head18`, classes made by a step each, are one.
    """
    alike: dict[Key, list[set[Key]]] = defaultdict(lambda: [set() for _ in keys_at])
    for at, keys in enumerate(keys_at):
        for key in keys:
            alike[_pattern(key)][at].add(key)
    return DataNumbers(
        frozenset(
            pattern
            for pattern, at in alike.items()
            if _keep_coming(at) or (len(at) < MIN_LOOKS and max(map(len, at)) >= _SIBLINGS)
        )
    )


def _pattern(key: Key) -> Key:
    """The key without numbers; of a cycle in their order without them, as they begin at the first by name."""
    parts = map(numberless, key[1:])
    return (key[0], *(sorted(parts) if key[0] in CYCLES else parts))


@dataclass(frozen=True)
class Names:
    """Attributes of one holder that are one of many."""

    written: str
    """`.client{i}`, `.{name}`."""
    others: frozenset[str]
    """Names on the same holder that are none of them."""
    above: Key | None = None
    """What the keys of several holders that gain the same names have in common; None where there is one holder."""

    def fits(self, name: str) -> bool:
        """Whether a name is one of them."""
        return name not in self.others and self.written in (_ANY_NAME, numberless(name))


Growing = Mapping[Place, Sequence[Names]]


def growing_names(keys_at: Sequence[Collection[Key]]) -> Growing:
    """The names that a holder gains over the looks, of the keys of the groups at each of them."""
    growing: dict[Place, list[Names]] = {}
    if len(keys_at) < MIN_LOOKS or len({frozenset(keys) for keys in keys_at}) == 1:
        return growing
    looks = len(keys_at)
    for place in range(1, max((len(key) for keys in keys_at for key in keys), default=0)):
        names: dict[Place, list[set[str]]] = defaultdict(lambda: [set() for _ in range(looks)])
        for at, keys in enumerate(keys_at):
            for key in keys:
                if len(key) > place and key[place].startswith("."):
                    name, _, held = key[place].partition(" ")
                    names[key[:place], held][at].add(name)
        found = {there: list(_growing(seen)) for there, seen in names.items()}
        found = _of_many_holders({there: those for there, those in found.items() if those}, names)
        if found:
            growing |= found
            keys_at = [{shared(key, found)[0] for key in keys} for keys in keys_at]
    return growing


def _of_many_holders(
    found: Mapping[Place, Sequence[Names]], names_at: Mapping[Place, Sequence[set[str]]]
) -> dict[Place, list[Names]]:
    """The names found, those of holders that gain the same ones at the same looks told as one.

    A new adapter adds a module of its name to every layer.
    """
    alike: dict[object, list[tuple[Place, Names]]] = defaultdict(list)
    for (prefix, held), those in found.items():
        for names in those:
            seen = tuple(frozenset(name for name in at if names.fits(name)) for at in names_at[prefix, held])
            alike[prefix[:_SHARED], held, names.written, seen].append(((prefix, held), names))
    told: dict[Place, list[Names]] = defaultdict(list)
    for same in alike.values():
        above = _common([prefix for (prefix, _), _ in same]) if len(same) > 1 else None
        for place, names in same:
            told[place].append(replace(names, above=above))
    return dict(told)


def _common(keys: Sequence[Key]) -> Key:
    """The parts that keys begin with."""
    parts = zip(*keys, strict=False)
    return tuple(same[0] for same in takewhile(lambda part: len(set(part)) == 1, parts))


def _growing(names_at: Sequence[set[str]]) -> Iterator[Names]:
    """Names that differ by a number, and are more at the last look than at the first; else all that come at each."""
    by_pattern: dict[str, list[set[str]]] = defaultdict(lambda: [set() for _ in names_at])
    for at, names in enumerate(names_at):
        for name in names:
            by_pattern[numberless(name)][at].add(name)
    left = [set(names) for names in names_at]
    for pattern, seen in by_pattern.items():
        if ANY_NUMBER in pattern and len(seen[-1]) > len(seen[0]) and len(set().union(*seen)) > 1:
            yield Names(pattern, frozenset())
            left = [names - of_pattern for names, of_pattern in zip(left, seen, strict=True)]
    stayed = left[-1] - left[0]
    came = [len(stayed & (after - before)) for before, after in pairwise(left)]
    if len(stayed) >= _MANY and all(came):
        yield Names(_ANY_NAME, frozenset(left[0]))


def shared(key: Key, growing: Growing) -> tuple[Key, int, str]:
    """The key that all of the names share, the place in this one of the first such name, and what that is told as.

    The key itself, -1 and "" where there is none.
    """
    first, told = -1, ""
    place, removed = 1, 0
    while place < len(key):
        name, _, held = key[place].partition(" ")
        those = next((names for names in growing.get((key[:place], held), ()) if names.fits(name)), None)
        if those is not None:
            first, told = (place + removed, those.written) if first < 0 else (first, told)
            above = key[:place] if those.above is None else those.above
            removed += place - len(above)
            key = (*above, f"{those.written} {held}", *key[place + 1 :])
            place = len(above)
        place += 1
    return key, first, told


def as_one(groups: Sequence[Group], graph: HeapGraph, growing: Growing, numbers: DataNumbers) -> list[Group]:
    """The groups of one look, with those one that only such a name tells apart."""
    if not growing and not numbers.patterns:
        return list(groups)
    alike: dict[tuple[Key, int, str], list[Group]] = defaultdict(list)
    for group in groups:
        key, place, told = (group.key, -1, "") if group.freed else shared(group.key, growing)
        alike[numbers.mask(key), place, told].append(group)
    return [
        _one_of(same, graph, key, place, told) if place >= 0 else together(same, graph, key)
        for (key, place, told), same in alike.items()
    ]


def _one_of(same: Sequence[Group], graph: HeapGraph, key: Key, place: int, told: str) -> Group:
    """Groups that a name alone tells apart as one, with the way of that whose storage is the largest, or the latest.

    Of several holders, the first by name: the same for all that one of the names leads to.
    """
    holder = min(group.key[:place] for group in same)
    of_one = [group for group in same if group.key[:place] == holder]
    typical = most_telling(of_one, graph)
    on_path = next((k for k, r in enumerate(typical.path) if part_of(graph, r) == typical.key[place]), -1)
    many = None
    if on_path >= 0:
        holder_type = graph.strings[graph.type[graph.holder[typical.path[on_path]]]]
        many = OneOfMany(
            on_path,
            f"['{told.removeprefix('.')}']" if holder_type in MODULE_DICTS else told,
            frozenset(_name(group.key[place]) for group in same),
            len({group.key[:place] for group in same}),
        )
    return replace(together(same, graph, key, typical), many=many)


def _name(part: str) -> str:
    return part.partition(" ")[0]


JUDGED = (Occasion.STEP, Occasion.LAST, Occasion.PEER, Occasion.BLOCK)
"""Occasions whose looks count; what is seen after the main code has returned is only listed."""


def judged_looks(rank: Rank, warmup: int) -> tuple[Look, ...]:
    """The looks that growth is read from: after warm-up, while the script's main code ran."""
    looks = [
        look
        for look in rank.looks
        if look.occasion in JUDGED and (look.step > warmup or look.occasion != Occasion.STEP)
    ]
    # a rank without steps may not have run at all between two looks that its peers' steps brought about in a row
    hurried = {id(a) for a, b in pairwise(looks) if a.occasion == b.occasion == Occasion.PEER and b.step - a.step <= 1}
    return tuple(look for look in looks if id(look) not in hurried)


@dataclass(frozen=True)
class GroupsOverLooks:
    """All groups of one rank at its judged looks."""

    steps: tuple[int, ...] = ()
    """A strictly rising number for each look."""
    at: Mapping[Key, Mapping[int, tuple[Look, Group]]] = field(default_factory=dict)
    """Each group where it was there, by those numbers."""
    lines: Mapping[Key, Series] = field(default_factory=dict)
    """Its bytes at every look."""
    garbage: Mapping[int, int] = field(default_factory=dict)
    """Bytes at each look that only a collection lets go of."""
    names: Growing = field(default_factory=dict)
    """What holders gain under ever new names."""
    data: DataKeys = field(default_factory=DataKeys)
    """The dicts whose keys tell no groups apart."""
    numbers: DataNumbers = field(default_factory=DataNumbers)
    """The numbers in names that tell none apart."""

    def of(self, graph: HeapGraph) -> list[Group]:
        """The groups of one graph, by what the looks say is one."""
        return as_one(group_by(graph, self.data.mask), graph, self.names, self.numbers)


def groups_over(looks: Sequence[Look]) -> GroupsOverLooks:
    """The groups of some looks of one rank."""
    at: dict[Key, dict[int, tuple[Look, Group]]] = defaultdict(dict)
    steps = rising_steps(looks)
    garbage: dict[int, int] = defaultdict(int)
    same = _same_over([look.heap for look in looks])
    for step, look in zip(steps, looks, strict=True):
        for group in same.of(look.heap):
            at[group.key][step] = (look, group)
            garbage[step] += 0 if by_program(group) else group.bytes
    lines = {key: series(steps, {step: group.bytes for step, (_, group) in there.items()}) for key, there in at.items()}
    return replace(same, steps=steps, at=dict(at), lines=lines, garbage=garbage)


def _same_over(graphs: Sequence[HeapGraph]) -> GroupsOverLooks:
    """Which groups are the same over some graphs: no more than that is known yet."""
    data = data_keys([live_keys(graph) for graph in graphs])
    grouped = [group_by(graph, data.mask) for graph in graphs]
    growing = growing_names([{group.key for group in groups if not group.freed} for groups in grouped])
    numbers = data_numbers(
        [{group.key if group.freed else shared(group.key, growing)[0] for group in groups} for groups in grouped]
    )
    return GroupsOverLooks(names=growing, data=data, numbers=numbers)


def by_program(group: Group) -> bool:
    """Whether only the program can let go of it: it is alive, or no collection ever frees it."""
    return group.freed in (0, IMMORTAL)


def rising_steps(looks: Sequence[Look]) -> tuple[int, ...]:
    """A strictly rising number for each look: its step; looks of a rank without steps are counted."""
    steps: list[int] = []
    for look in looks:
        steps.append(look.step if not steps or look.step > steps[-1] else steps[-1] + 1)
    return tuple(steps)


def is_model(graph: HeapGraph, group: Group) -> bool:
    """A parameter, what hangs on one, or an optimizer's state."""
    path = [group.start, *(int(graph.held[reference]) for reference in group.path)]
    return any(graph.object(index).kind in (ObjectKind.PARAMETER, ObjectKind.OPTIMIZER) for index in path)
