"""Groups the storages of a heap snapshot by their holder, and matches groups over snapshots."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Self

import numpy as np

from leakscope.findings.growth import MIN_SNAPSHOTS, Series, series
from leakscope.findings.naming import (
    ANY_KEY,
    ANY_NUMBER,
    MODULE_DICTS,
    fingerprint,
    generic,
    is_transparent,
    mask_ids,
    numberless,
)
from leakscope.graph.model import (
    IMMORTAL,
    KINDS,
    REACHABLE,
    TENSOR_KINDS,
    HeapGraph,
    ObjectKind,
    ReferenceKind,
    RootKind,
    once,
)
from leakscope.graph.ownership import is_outside_users_files
from leakscope.graph.paths import ShortestPaths, paths_from, paths_from_roots
from leakscope.graph.walks import Cycles, find_cycles, smallest_cycle
from leakscope.run.model import HeapSnapshot, Rank
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
"""Kinds of objects on a cycle by which a user would name it, best first."""

CYCLES = ("cycle", "immortal")
"""First part of the key of garbage: collectable and uncollectable."""
HOOKS = "hooks"
"""Last part of the key of memory held by hooks of a tensor rather than its holder."""


_REPEATED = 3
"""Parts of a key searched for repetitions: a linked list repeats `.next`, one of dicts three references."""


def is_literal(name: str) -> bool:
    """Whether a reference is an item whose key is a string, as a program writes it: `['train']`."""
    return name.startswith(("['", '["'))


@lru_cache(1 << 12)
def reference_name(name: str, literal: bool = True) -> str:
    """What the name of a reference adds to a key: `[...]` for every position in a list and every key of a dict.

    A key that is a string stays where it is `literal`. Addresses, hashes and long numbers are masked.
    """
    if name.startswith("[") and not (literal and is_literal(name)):
        return ANY_KEY
    return mask_ids(name if is_literal(name) else re.sub(r"key .*", "key ...", generic(name)))


def name_on_cycle(name: str) -> str:
    """What the name of a reference of a cycle adds to a key: positions are `[i]`, all keys of a dict stay."""
    return mask_ids(generic(name))


class ReferenceKey(tuple[str, ...]):
    """The place in the user's code that holds memory, which decides what is the same.

    Groups, the instances of a cut, fingerprints, and by these the merge over ranks, baselines, suppressions and
    comparisons go by it. The parts are the GC root, then each reference with the object it holds; of garbage they are
    one of `CYCLES`, then the references of the smallest cycle, sorted. A string by which a dict has something
    (`['train']`) is part of the key. The position in a list, any other key of a dict, an address, a hash and a long
    number are not.
    """

    __slots__ = ()

    @classmethod
    def of_path(cls, graph: HeapGraph, start: int, path: Sequence[int]) -> Self:
        """The key of what a path from a root holds, up to the last container: the same for every item of that.

        Where no container holds it, up to the first tensor. Runs that repeat themselves (a linked list, a chain of
        graphs) count once. A string by which a dict has something stays, `['train']`; `DataKeys` masks those that turn
        out to be data. Below a position it is masked here, as every item of a list has the same ones.
        """
        kinds = [graph.object(int(graph.holder[reference])).kind for reference in path]
        tensors = (k for k, kind in enumerate(kinds) if kind in TENSOR_KINDS and not is_transparent(graph, path[k]))
        before = next(tensors, len(kinds))
        items = [k for k in range(before) if kinds[k] == ObjectKind.CONTAINER]
        parts = [_root_part(graph, start)]
        of_one = True
        for reference in path[: items[-1] + 1 if items else before]:
            name = graph.reference(reference).name
            of_one = of_one and (not name.startswith("[") or is_literal(name))
            part = cls.part(graph, reference, of_one)
            if part not in parts[-_REPEATED:]:
                parts.append(part)
        return cls(parts)

    @classmethod
    def of_reference(cls, graph: HeapGraph, start: int, path: Sequence[int], names: Sequence[str]) -> Self:
        """The key of the last reference of a path, whatever it holds; the references have these names in the user's
        code.
        """
        parts = [_root_part(graph, start)]
        for reference, name in zip(path[:-1], names[:-1], strict=True):
            part = f"{name} {_kind_and_name(graph, int(graph.held[reference]))}"
            if part not in parts[-_REPEATED:]:
                parts.append(part)
        return cls((*parts, names[-1]))

    @classmethod
    def of_cycle(cls, graph: HeapGraph, cycle: Sequence[int], is_immortal: bool) -> Self:
        """The key of what a cycle holds, wherever on it the walk began.

        Only what the user's code holds on the cycle counts, not how many tensors and grad nodes lie between.
        """
        plain = [
            r for r in cycle if graph.object(int(graph.holder[r])).kind not in (*TENSOR_KINDS, ObjectKind.GRAD_NODE)
        ]
        parts: set[str] = set()
        for reference in plain or cycle:
            r = graph.reference(reference)
            held = graph.object(r.held)
            is_tensor = bool(plain) and held.kind in (*TENSOR_KINDS, ObjectKind.GRAD_NODE)
            parts.add(f"{name_on_cycle(r.name)} {'tensor' if is_tensor else f'{held.kind}:{mask_ids(held.name)}'}")
        if all(graph.object(int(graph.holder[r])).kind == ObjectKind.CONTAINER for r in plain):
            # The C++ reference that hides the cycle distinguishes cycles through nameless containers.
            hiding = (graph.reference(r) for r in cycle)
            parts |= {name_on_cycle(r.name) for r in hiding if r.kind in (ReferenceKind.HOOK, ReferenceKind.SAVED)}
        return cls((CYCLES[is_immortal], *sorted(parts)))

    @staticmethod
    def part(graph: HeapGraph, reference: int, literal: bool = True) -> str:
        """What a key says of one reference: its name, and what it holds; with a key that is a string if `literal`."""
        r = graph.reference(reference)
        return f"{reference_name(r.name, literal)} {_kind_and_name(graph, r.held)}"

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits."""
        return fingerprint(self)

    @property
    def is_of_cycle(self) -> bool:
        """Whether it is of garbage."""
        return self[0] in CYCLES

    @property
    def is_of_hooks(self) -> bool:
        """Whether it is of what the hooks of a tensor hold."""
        return self[-1] == HOOKS

    def of_hooks(self) -> ReferenceKey:
        """The key of what is held by the hooks of the tensor, not by its holder."""
        return ReferenceKey((*self, HOOKS))

    def without_literals(self) -> ReferenceKey:
        """The key without all strings by which dicts have something."""
        return ReferenceKey(map(_without_literal, self))

    def without_numbers(self) -> ReferenceKey:
        """The key without numbers; of a cycle in the order that the parts have without them."""
        parts = map(numberless, self[1:])
        return ReferenceKey((self[0], *(sorted(parts) if self.is_of_cycle else parts)))

    def masks(self, graph: HeapGraph, reference: int) -> bool:
        """Whether it has a reference without the string by which a dict has that."""
        part, masked = (self.part(graph, reference, literal) for literal in (True, False))
        return part not in self and masked in self

    def names(self, graph: HeapGraph, references: Sequence[int]) -> list[str]:
        """The names of references on a path, the same ones in each instance of what the key is of."""
        named = ((r, graph.reference(r).name) for r in references)
        return [reference_name(name, literal=is_literal(name) and self.part(graph, r) in self) for r, name in named]


def _without_literal(part: str) -> str:
    """`[...] list` of `['train'] list`."""
    return re.sub(r"^\[.*\](?= )", ANY_KEY, part) if is_literal(part) else part


def _kind_and_name(graph: HeapGraph, index: int) -> str:
    obj = graph.object(index)
    return "tensor" if obj.kind in TENSOR_KINDS else f"{obj.kind}:{mask_ids(obj.name)}"


def _root_part(graph: HeapGraph, start: int) -> str:
    """The first part of the key of what a root holds."""
    return _kind_and_name(graph, start) + _native_type(graph, start) + _given_apart(graph, start)


def _native_type(graph: HeapGraph, start: int) -> str:
    """` float32`, the only stable fact about a tensor held by native code: its size changes between runs."""
    obj = graph.object(start)
    held = obj.root == RootKind.NATIVE and obj.kind in TENSOR_KINDS
    return f" {obj.label.split()[-1].partition('[')[0]}" if held and "[" in obj.label else ""


def _given_apart(graph: HeapGraph, start: int) -> str:
    """The name that the user gave an object, if another one of its type has a name too; else its type is enough."""
    alike = [index for index in graph.given if graph.type[index] == graph.type[start]]
    return f" {graph.given[start]}" if start in graph.given and len(alike) > 1 else ""


@dataclass(frozen=True)
class RepeatedAttribute:
    """A reference on a path that stands for similar ones of one holder, with individual names."""

    place: int
    """Position on the path."""
    name: str
    """Their common name: `.client{i}`."""
    names: frozenset[str]
    """The existing names."""
    holders: int = 1
    """Holders with such names that each gain the same."""


@dataclass(frozen=True)
class StorageGroup:
    """Storages with one holder in one snapshot."""

    key: ReferenceKey
    start: int
    """The start of the path: a root, or an object of the cycle."""
    path: tuple[int, ...]
    """References from the start to a typical storage (the last one allocated)."""
    storages: tuple[int, ...]
    bytes: int
    freed: int
    """0 for reachable storages; else as `HeapGraph.freed`."""
    cycles: tuple[tuple[int, ...], ...] = field(default=())
    """The smallest cycle of each instance, as references; () for reachable storages."""
    roots: int = 0
    """Number of roots above reachable storages: each call of one function is its own root."""
    many: RepeatedAttribute | None = None
    """Set if the holder gains it under ever new names."""


Mask = Callable[[ReferenceKey], ReferenceKey]
"""Maps keys that differ only in data to one key."""


@dataclass(frozen=True)
class _Keyed:
    """The reachable storages of a graph by holder key, and the data for their groups."""

    members: Mapping[ReferenceKey, Sequence[int]]
    through: Sequence[bool]
    origins: Sequence[int]


@once
def group_storages(graph: HeapGraph) -> list[StorageGroup]:
    """Assign every storage of the graph to exactly one group, in the order of their indexes.

    With only one graph, no key of a dict is known to be more than data: items of one dict are one group.
    """
    return group_by(graph, ReferenceKey.without_literals)


def group_by(graph: HeapGraph, mask: Mask) -> list[StorageGroup]:
    """Assign every storage to one group; reachable ones are joined if `mask` makes their keys equal."""
    return _live(graph, mask) + _garbage(graph)


def live_keys(graph: HeapGraph) -> frozenset[ReferenceKey]:
    """Keys of the groups of reachable storages, with each string key of a dict."""
    return frozenset(_keyed(graph).members)


def _live(graph: HeapGraph, mask: Mask) -> list[StorageGroup]:
    paths, keyed = paths_from_roots(graph), _keyed(graph)
    members: dict[ReferenceKey, list[int]] = {}
    for key, storages in keyed.members.items():
        members.setdefault(mask(key), []).extend(storages)
    groups = []
    for key, storages in members.items():
        storages.sort()
        # Memory behind a graph and other memory may share a holder: the heavier kind provides the words.
        behind = [s for s in storages if keyed.through[s]]
        heavier = behind if 2 * _bytes(graph, behind) > _bytes(graph, storages) else storages
        typical = _typical(graph, heavier)
        down = tuple(paths.path_to(graph, typical))
        roots = len({keyed.origins[s] for s in storages})
        size = _bytes(graph, storages)
        groups.append(StorageGroup(key, keyed.origins[typical], down, tuple(storages), size, 0, roots=roots))
    return groups


@once
def _keyed(graph: HeapGraph) -> _Keyed:
    paths = paths_from_roots(graph)
    entries, through, hooked, origins = _entries(graph, paths)
    keys: dict[int, ReferenceKey] = {}
    shared: dict[tuple[object, ...], ReferenceKey] = {}
    members: dict[ReferenceKey, list[int]] = {}
    for storage in graph.storages.tolist():
        if graph.freed[storage] == REACHABLE and np.isfinite(paths.cost[storage]):
            entry = entries[storage] if entries[storage] >= 0 else storage
            if entry not in keys:
                last = int(paths.last[entry])
                like = (last, entry) if last < 0 else (int(graph.holder[last]), *_alike(graph, last, entry))
                if like not in shared:
                    shared[like] = ReferenceKey.of_path(
                        graph, paths.start_of(graph, entry), paths.path_to(graph, entry)
                    )
                keys[entry] = shared[like]
            # memory held by a tensor's hooks grows by itself while the tensor stays the same
            key = keys[entry].of_hooks() if hooked[storage] else keys[entry]
            members.setdefault(key, []).append(storage)
    return _Keyed(members, through, origins)


def _alike(graph: HeapGraph, reference: int, held: int) -> tuple[object, ...]:
    """What a key contains of the last reference of a path and its referent: items of one container share it."""
    name = reference_name(graph.strings[graph.reference_name[reference]])
    return int(graph.reference_kind[reference]), name, int(graph.kind[held]), int(graph.name[held])


def _entries(graph: HeapGraph, paths: ShortestPaths) -> tuple[list[int], list[bool], list[bool], list[int]]:
    """For each object the first tensor on its path that is held itself (-1 for none), whether the path passes a grad
    graph, whether it passes a hook of that tensor, and its root.

    One pass in the order of path costs: a chain of a million grad nodes takes a million steps, not their square.
    """
    of_tensor = graph.is_kind(*TENSOR_KINDS)
    tensors = of_tensor.tolist()
    attributes = graph.is_reference_kind(ReferenceKind.ATTRIBUTE) & of_tensor[graph.holder]
    passing = {r for r in np.flatnonzero(attributes).tolist() if is_transparent(graph, r)}
    graphs = graph.is_reference_kind(ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED).tolist()
    hooks = graph.is_reference_kind(ReferenceKind.HOOK).tolist()
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
    """The largest storage; among equals one with a known allocation site, then the latest: its trace shows most."""
    return max(storages, key=lambda s: (int(graph.bytes[s]), s in graph.made_at, s))


def _bytes(graph: HeapGraph, storages: Sequence[int]) -> int:
    return int(graph.bytes[np.asarray(storages, dtype=np.int64)].sum())


@once
def _garbage(graph: HeapGraph) -> list[StorageGroup]:
    dead = graph.storages[graph.freed[graph.storages] != REACHABLE]
    if len(dead) == 0:
        return []
    cycles = find_cycles(graph)
    closed = np.flatnonzero(cycles.cyclic[cycles.label] & (graph.freed != REACHABLE))
    paths = paths_from(graph, closed)
    instances: dict[int, list[int]] = {}
    for storage in dead.tolist():
        if np.isfinite(paths.cost[storage]):
            instances.setdefault(int(cycles.label[paths.start_of(graph, storage)]), []).append(storage)
    collected: dict[ReferenceKey, list[tuple[tuple[int, ...], list[int]]]] = {}
    members = _members(cycles, instances)
    for component, storages in instances.items():
        cycle = _cycle(graph, cycles, members[component])
        immortal = any(graph.freed[s] == IMMORTAL for s in storages)
        key = ReferenceKey.of_cycle(graph, cycle, immortal)
        collected.setdefault(key, []).append((cycle, storages))
    return [_garbage_group(graph, paths, key, alike) for key, alike in collected.items()]


def _members(cycles: Cycles, wanted: dict[int, list[int]]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {component: [] for component in wanted}
    for index in np.flatnonzero(np.isin(cycles.label, list(wanted))).tolist():
        members[int(cycles.label[index])].append(index)
    return members


def _cycle(graph: HeapGraph, cycles: Cycles, members: list[int]) -> tuple[int, ...]:
    """The smallest cycle through the object that a user would name: a class if there is one, since it refers to itself
    whatever else is cut.
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
    """Whether an object is a class, a cycle by its `__mro__` and the descriptors in its `__dict__`."""
    return graph.kind[index] == KINDS.index(ObjectKind.CLASS) and bool((graph.held[graph.out_of(index)] == index).any())


def _garbage_group(
    graph: HeapGraph, paths: ShortestPaths, key: ReferenceKey, instances: list[tuple[tuple[int, ...], list[int]]]
) -> StorageGroup:
    storages = [s for _, held in instances for s in held]
    cycle, last = instances[-1]
    typical = _typical(graph, last)
    freed = [int(graph.freed[s]) for s in storages]
    return StorageGroup(
        key=key,
        start=paths.start_of(graph, typical),
        path=tuple(paths.path_to(graph, typical)),
        storages=tuple(storages),
        bytes=_bytes(graph, storages),
        freed=IMMORTAL if IMMORTAL in freed else max(freed),
        cycles=tuple(c for c, _ in [(cycle, last), *instances[:-1]]),
    )


def together(
    same: Sequence[StorageGroup], graph: HeapGraph, key: ReferenceKey, representative: StorageGroup | None = None
) -> StorageGroup:
    """Join groups of one snapshot under this key, with the path of `representative` or the best one."""
    if len(same) == 1:
        return replace(same[0], key=key)
    representative = representative or most_representative(same, graph)
    in_order = [representative, *(group for group in same if group is not representative)]
    freed = [group.freed for group in same]
    return replace(
        representative,
        key=key,
        storages=tuple(storage for group in same for storage in group.storages),
        bytes=sum(group.bytes for group in same),
        freed=IMMORTAL if IMMORTAL in freed else max(freed),
        cycles=tuple(cycle for group in in_order for cycle in group.cycles),
        roots=len({group.start for group in same}) if all(g.roots <= 1 for g in same) else max(g.roots for g in same),
    )


def most_representative(groups: Sequence[StorageGroup], graph: HeapGraph) -> StorageGroup:
    """The group whose path leads to the largest storage, the latest among equals."""
    return max(groups, key=lambda group: (int(graph.bytes[_end(group, graph)]), _end(group, graph)))


def _end(group: StorageGroup, graph: HeapGraph) -> int:
    return int(graph.held[group.path[-1]]) if group.path else group.start


Prefix = tuple[str, ...]
"""First parts of a key."""
Place = tuple[Prefix, str]
"""The place of names: the first parts of a key, and the kind and type of the named objects."""

_ANY_NAME = ".{name}"
"""Placeholder as in the f-string that makes such names."""
_SHARED = 2
"""Parts of a key that holders with the same new names have in common: the root and its first reference. Heuristic."""
_MIN_NEW_NAMES = 4
"""Minimum number of names without a number: two or three attributes may be created on first use. Heuristic."""
_MAX_LITERAL_KEYS = 8
"""Keys of one dict that a program writes literally. Heuristic: at twice as many, each layer of a small network would be
its own finding; at half, the losses, metrics and counts of a usual history would be one.
"""
_OF_PARAMETER = re.compile(r"[.'\"](weight|bias)(_\w+)?['\"]\]$")
"""A key that is a parameter's name, as from `named_parameters()`: `['0.weight']`, `['rnn.weight_ih_l0']`."""
_OF_MODULE = 2
"""Number of such keys from which on a dict holds the parameters of a module: one layer has a weight and a bias."""
_MIN_NUMBERED_NAMES = 4
"""Names in one snapshot that differ only by a number from which on they are numbered. Heuristic: a network may have two
or three encoders with a cycle each.
"""
_MIN_RISES = 2
"""Snapshots with new names: growth by them has risen that often."""


@dataclass(frozen=True)
class DataKeys:
    """The dicts whose keys are data: step numbers, ids, paths. In all others a key is a name in the program."""

    dicts: frozenset[Prefix] = frozenset()
    """The first parts of a masked key that lead to each of them."""

    def mask(self, key: ReferenceKey) -> ReferenceKey:
        """The key of a group without strings that are data."""
        masked: list[str] = []
        for part in key:
            is_data = is_literal(part) and tuple(masked) in self.dicts
            masked.append(_without_literal(part) if is_data else part)
        return ReferenceKey(masked)


def data_keys(keys_at: Sequence[Collection[ReferenceKey]]) -> DataKeys:
    """Which dicts' keys are data, from the keys of reachable groups in each snapshot.

    A dict qualifies if it gains keys in every snapshot, has more than a program writes literally, or has a module's
    parameter names, as an average of weights does: the keys of `history` are `train` and `val` throughout.
    """
    known = DataKeys()
    literal = [{key for key in keys if any(map(is_literal, key[1:]))} for keys in keys_at]
    for place in range(1, max((len(key) for keys in literal for key in keys), default=0)):
        seen: dict[Prefix, list[set[str]]] = defaultdict(lambda: [set() for _ in literal])
        for at, keys in enumerate(literal):
            for key in keys:
                if len(key) > place and is_literal(key[place]):
                    seen[known.mask(key)[:place]][at].add(key[place])
        known = DataKeys(known.dicts | {above for above, names_at in seen.items() if _are_data(names_at)})
    return known


def _are_data(names_at: Sequence[set[str]]) -> bool:
    names = set().union(*names_at)
    if len(names) > _MAX_LITERAL_KEYS or _keep_coming(names_at):
        return True
    if sum(_OF_PARAMETER.search(name.rpartition(" ")[0]) is not None for name in names) >= _OF_MODULE:
        return True
    return len(names_at) < MIN_SNAPSHOTS and len({numberless(name) for name in names}) < len(names)


def _keep_coming(names_at: Sequence[Collection[object]]) -> bool:
    """Whether new ones come at two snapshots at least, and at most of those after the first with any."""
    known: set[object] = set()
    came: list[bool] = []
    for names in names_at:
        came += [not known.issuperset(names)] if known else []
        known.update(names)
    return sum(came) >= _MIN_RISES and 2 * sum(came) > len(came)


@dataclass(frozen=True)
class DataNumbers:
    """Numbers in names that are data."""

    patterns: frozenset[ReferenceKey] = frozenset()
    """Keys without numbers, of those that differ only in such a number."""

    def mask(self, key: ReferenceKey) -> ReferenceKey:
        """The key of a group without numbers that are data."""
        pattern = key.without_numbers() if self.patterns else key
        return pattern if pattern in self.patterns else key


def data_numbers(keys_at: Sequence[Collection[ReferenceKey]]) -> DataNumbers:
    """Which numbers in names are data, from the keys of all groups in each snapshot.

    They are if new ones keep coming, or if there are many in one snapshot: `.layer1` and `.layer2`, which stay, are two
    attributes; `Head17` and `Head18`, classes created by each step, are one.
    """
    alike: dict[ReferenceKey, list[set[ReferenceKey]]] = defaultdict(lambda: [set() for _ in keys_at])
    for at, keys in enumerate(keys_at):
        for key in keys:
            alike[key.without_numbers()][at].add(key)
    return DataNumbers(
        frozenset(
            pattern
            for pattern, at in alike.items()
            if _keep_coming(at) or (len(at) < MIN_SNAPSHOTS and max(map(len, at)) >= _MIN_NUMBERED_NAMES)
        )
    )


@dataclass(frozen=True)
class Names:
    """Similar attributes of one holder."""

    written: str
    """`.client{i}`, `.{name}`."""
    others: frozenset[str]
    """Other names of the same holder."""
    above: Prefix | None = None
    """Common key parts of several holders with the same new names; None for one holder."""

    def fits(self, name: str) -> bool:
        """Whether a name is one of them."""
        return name not in self.others and self.written in (_ANY_NAME, numberless(name))


Growing = Mapping[Place, Sequence[Names]]


def growing_names(keys_at: Sequence[Collection[ReferenceKey]]) -> Growing:
    """The names that a holder gains over the snapshots, from the keys of the groups in each."""
    growing: dict[Place, list[Names]] = {}
    if len(keys_at) < MIN_SNAPSHOTS or len({frozenset(keys) for keys in keys_at}) == 1:
        return growing
    snapshots = len(keys_at)
    for place in range(1, max((len(key) for keys in keys_at for key in keys), default=0)):
        names: dict[Place, list[set[str]]] = defaultdict(lambda: [set() for _ in range(snapshots)])
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
    """The names found, with holders that gain the same ones in the same snapshots joined.

    A new adapter adds a module of its name to every layer.
    """
    alike: dict[object, list[tuple[Place, Names]]] = defaultdict(list)
    for (prefix, held), those in found.items():
        for names in those:
            seen = tuple(frozenset(name for name in at if names.fits(name)) for at in names_at[prefix, held])
            alike[prefix[:_SHARED], held, names.written, seen].append(((prefix, held), names))
    reported: dict[Place, list[Names]] = defaultdict(list)
    for same in alike.values():
        above = _common([prefix for (prefix, _), _ in same]) if len(same) > 1 else None
        for place, names in same:
            reported[place].append(replace(names, above=above))
    return dict(reported)


def _common(keys: Sequence[Prefix]) -> Prefix:
    """The common parts at the start of keys."""
    parts = zip(*keys, strict=False)
    return tuple(same[0] for same in takewhile(lambda part: len(set(part)) == 1, parts))


def _growing(names_at: Sequence[set[str]]) -> Iterator[Names]:
    """Names that differ by a number and become more from first to last snapshot; else all that come at each."""
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
    if len(stayed) >= _MIN_NEW_NAMES and all(came):
        yield Names(_ANY_NAME, frozenset(left[0]))


def shared(key: ReferenceKey, growing: Growing) -> tuple[ReferenceKey, int, str]:
    """The key that all of the names share, the position of the first such name in it, and its common name.

    The key itself, -1 and "" if there is none.
    """
    first, reported = -1, ""
    place, removed = 1, 0
    while place < len(key):
        name, _, held = key[place].partition(" ")
        those = next((names for names in growing.get((key[:place], held), ()) if names.fits(name)), None)
        if those is not None:
            first, reported = (place + removed, those.written) if first < 0 else (first, reported)
            above = key[:place] if those.above is None else those.above
            removed += place - len(above)
            key = ReferenceKey((*above, f"{those.written} {held}", *key[place + 1 :]))
            place = len(above)
        place += 1
    return key, first, reported


def as_one(
    groups: Sequence[StorageGroup], graph: HeapGraph, growing: Growing, numbers: DataNumbers
) -> list[StorageGroup]:
    """The groups of one snapshot, with those joined that differ only by such a name."""
    if not growing and not numbers.patterns:
        return list(groups)
    alike: dict[tuple[ReferenceKey, int, str], list[StorageGroup]] = defaultdict(list)
    for group in groups:
        key, place, name = (group.key, -1, "") if group.freed else shared(group.key, growing)
        alike[numbers.mask(key), place, name].append(group)
    return [
        _one_of(same, graph, key, place, name) if place >= 0 else together(same, graph, key)
        for (key, place, name), same in alike.items()
    ]


def _one_of(same: Sequence[StorageGroup], graph: HeapGraph, key: ReferenceKey, place: int, name: str) -> StorageGroup:
    """Join groups that differ only by name, with the path of the one with the largest or latest storage.

    With several holders the first by name: the same for all that one of the names leads to.
    """
    holder = min(group.key[:place] for group in same)
    of_one = [group for group in same if group.key[:place] == holder]
    typical = most_representative(of_one, graph)
    on_path = next((k for k, r in enumerate(typical.path) if ReferenceKey.part(graph, r) == typical.key[place]), -1)
    many = None
    if on_path >= 0:
        holder_type = graph.strings[graph.type[graph.holder[typical.path[on_path]]]]
        many = RepeatedAttribute(
            on_path,
            f"['{name.removeprefix('.')}']" if holder_type in MODULE_DICTS else name,
            frozenset(_name(group.key[place]) for group in same),
            len({group.key[:place] for group in same}),
        )
    return replace(together(same, graph, key, typical), many=many)


def _name(part: str) -> str:
    return part.partition(" ")[0]


JUDGED = (Occasion.STEP, Occasion.LAST, Occasion.PEER, Occasion.BLOCK)
"""Occasions whose snapshots are judged; those after the main code has returned are only listed."""


def judged_snapshots(rank: Rank, warmup: int) -> tuple[HeapSnapshot, ...]:
    """The snapshots from which growth is read: after warm-up, while the script's main code ran."""
    snapshots = [
        snapshot
        for snapshot in rank.heap_snapshots
        if snapshot.occasion in JUDGED and (snapshot.step > warmup or snapshot.occasion != Occasion.STEP)
    ]
    # a rank without steps may not have run between two consecutive snapshots that its peers' steps triggered
    hurried = {
        id(a) for a, b in pairwise(snapshots) if a.occasion == b.occasion == Occasion.PEER and b.step - a.step <= 1
    }
    return tuple(snapshot for snapshot in snapshots if id(snapshot) not in hurried)


@dataclass(frozen=True)
class GroupsOverSnapshots:
    """All groups of one rank at its judged snapshots."""

    steps: tuple[int, ...] = ()
    """A strictly ascending number for each snapshot."""
    at: Mapping[ReferenceKey, Mapping[int, tuple[HeapSnapshot, StorageGroup]]] = field(default_factory=dict)
    """Each group at the snapshots that contain it, by those numbers."""
    lines: Mapping[ReferenceKey, Series] = field(default_factory=dict)
    """Its bytes at every snapshot."""
    garbage: Mapping[int, int] = field(default_factory=dict)
    """Bytes at each snapshot that only a collection frees."""
    names: Growing = field(default_factory=dict)
    """What holders gain under ever new names."""
    data: DataKeys = field(default_factory=DataKeys)
    """The dicts whose keys distinguish no groups."""
    numbers: DataNumbers = field(default_factory=DataNumbers)
    """The numbers in names that distinguish no groups."""

    def of(self, graph: HeapGraph) -> list[StorageGroup]:
        """The groups of one graph, joined as over the snapshots."""
        return as_one(group_by(graph, self.data.mask), graph, self.names, self.numbers)


def groups_over(snapshots: Sequence[HeapSnapshot]) -> GroupsOverSnapshots:
    """The groups of some snapshots of one rank."""
    at: dict[ReferenceKey, dict[int, tuple[HeapSnapshot, StorageGroup]]] = defaultdict(dict)
    steps = rising_steps(snapshots)
    garbage: dict[int, int] = defaultdict(int)
    same = _same_over([snapshot.heap for snapshot in snapshots])
    for step, snapshot in zip(steps, snapshots, strict=True):
        for group in same.of(snapshot.heap):
            at[group.key][step] = (snapshot, group)
            garbage[step] += 0 if by_program(group) else group.bytes
    lines = {key: series(steps, {step: group.bytes for step, (_, group) in there.items()}) for key, there in at.items()}
    return replace(same, steps=steps, at=dict(at), lines=lines, garbage=garbage)


def _same_over(graphs: Sequence[HeapGraph]) -> GroupsOverSnapshots:
    """Which groups are the same over some graphs, with nothing else known yet."""
    data = data_keys([live_keys(graph) for graph in graphs])
    grouped = [group_by(graph, data.mask) for graph in graphs]
    growing = growing_names([{group.key for group in groups if not group.freed} for groups in grouped])
    numbers = data_numbers(
        [{group.key if group.freed else shared(group.key, growing)[0] for group in groups} for groups in grouped]
    )
    return GroupsOverSnapshots(names=growing, data=data, numbers=numbers)


def by_program(group: StorageGroup) -> bool:
    """Whether only the program can release it: it is reachable, or uncollectable."""
    return group.freed in (REACHABLE, IMMORTAL)


def rising_steps(snapshots: Sequence[HeapSnapshot]) -> tuple[int, ...]:
    """A strictly ascending number for each snapshot: its step; snapshots of a rank without steps are counted."""
    steps: list[int] = []
    for snapshot in snapshots:
        steps.append(snapshot.step if not steps or snapshot.step > steps[-1] else steps[-1] + 1)
    return tuple(steps)


def is_model(graph: HeapGraph, group: StorageGroup) -> bool:
    """Whether it is a parameter, something reachable from one, or an optimizer's state."""
    path = [group.start, *(int(graph.held[reference]) for reference in group.path)]
    return any(graph.object(index).kind in (ObjectKind.PARAMETER, ObjectKind.OPTIMIZER) for index in path)
