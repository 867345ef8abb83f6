"""Reference counts compared with known references: what is alive, what native code holds, what is pruned."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import repeat
from operator import is_
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import HeapGraph, Ints, ReferenceKind
from leakscope.graph.walks import occurrences, reachable
from leakscope.heap._sweep_fallback import LARGE
from leakscope.heap.address_index import Places
from leakscope.heap.autograd import Role, dicts_of_node, node_layout, own_memory
from leakscope.heap.garbage import Garbage
from leakscope.heap.native_graph import (
    CppReferences,
    NativeGraph,
    References,
    ReferenceTable,
    changed,
    together,
    uses_of_storages,
)
from leakscope.heap.referents import globals_of_spawned_main, module_dict
from leakscope.heap.sweep import Sweep
from leakscope.process.gc_control import check_deadline
from leakscope.process.raw_types import all_keys_are, mro
from leakscope.process.torch_compat import uses_of_tensor

_OF_A_REPLAY = 16
"""Owners that the functions of a replaying view may add to a base or a storage; nothing lists them. `.conj().imag` has
7 (counted with torch 2.13).
"""


@dataclass(frozen=True, slots=True)
class Refcounts:
    """Reference counts that the references found do not explain, by object and storage."""

    unexplained: Places
    """References counted but not found; above 0, something unseen holds the object."""
    idle: Places
    """Indexes of storage objects that only C++ keeps: they hold nothing and are freed with the storage."""


def explain_refcounts(native: NativeGraph) -> Refcounts:
    """Compare every reference count with the references found.

    A tensor, a grad node and a storage keep one Python reference for all their C++ owners together
    (c10/util/intrusive_ptr.h: the Python object is increfed when the use count goes from 1 to 2). Their C++ owners are
    counted separately: `_use_count` of tensors and storages less one for the Python object.
    """
    sweep, role, references = native.sweep, native.role, native.references
    swept, further = references.swept, references.further
    unexplained = np.zeros(references.count, dtype=np.int32)
    unexplained[: references.objects] = sweep.counts
    unexplained[: swept.count] -= swept.times()
    np.add.at(unexplained, references.twice, 1)
    np.subtract.at(unexplained, further.held, further.python)
    wrappers = np.flatnonzero(role == Role.STORAGE)
    lone = wrappers[unexplained[wrappers] == sweep.counts[wrappers]]  # no Python reference to it was found
    owned = further.held[(further.python == 0) & (further.extra >= 0)]
    _explain_tensors_and_nodes(native, owned, unexplained)
    _explain_storages(native, unexplained)
    np.maximum(unexplained, 0, out=unexplained)
    return Refcounts(unexplained, lone[unexplained[lone] == 0].astype(np.int32))


def _explain_tensors_and_nodes(native: NativeGraph, owned: Places, unexplained: Places) -> None:
    """Compare the C++ owners found with those that C++ counts; `owned` lists an object once per owner, in order."""
    objects = native.sweep.objects
    tensors = np.flatnonzero(native.role == Role.TENSOR)
    uses = np.fromiter(map(uses_of_tensor, map(objects.__getitem__, tensors.tolist())), np.int64, len(tensors))
    unseen = np.maximum(uses - 1 - occurrences(owned, tensors), 0)
    if native.replayed:
        unseen[(unseen <= _OF_A_REPLAY) & np.isin(tensors, list(native.replayed))] = 0
    of_cpp = uses > 1
    unexplained[tensors] = np.maximum(unexplained[tensors] - of_cpp, 0) + unseen
    nodes = np.flatnonzero(native.role == Role.GRAD_NODE)
    unexplained[nodes] -= occurrences(owned, nodes) > 0


def _explain_storages(native: NativeGraph, unexplained: Places) -> None:
    """Compare the tensors found over each storage with its C++ owners, and subtract them from its Python object."""
    references, many = native.references, len(native.storages)
    first = np.searchsorted(references.further.held, references.objects)
    holder, storage = references.further.holder[first:], references.further.held[first:] - references.objects
    uses = uses_of_storages(native)
    wrapper = native.role[holder] == Role.STORAGE
    of_cpp = uses[storage[wrapper]] > 1
    np.subtract.at(unexplained, holder[wrapper], of_cpp.astype(np.int32))
    tensors = np.bincount(storage[~wrapper], minlength=many)
    unseen = np.maximum(uses - tensors - 1, 0)  # one for the Python object
    if native.replayed:
        of_replays = np.bincount(storage[np.isin(holder, list(native.replayed))], minlength=many) > 0
        unseen[of_replays & (unseen <= _OF_A_REPLAY)] = 0
    unseen[uses < 0] = 1
    unexplained[references.objects :] = unseen


_OF_ARRAY: Any = np.ndarray.__dict__


def arrays_of(native: NativeGraph, refcounts: Refcounts) -> dict[int, int]:
    """Map the index of each object that exclusively owns at least LARGE bytes to the bytes.

    Objects that native code holds too are excluded: `torch.from_numpy` keeps the array as long as the tensor
    (torch/csrc/utils/tensor_numpy.cpp), and the tensor's storage is that memory.
    """
    sweep = native.sweep
    untracked = np.arange(sweep.tracked, len(sweep.objects))
    kinds = np.unique(sweep.type_index[untracked])
    owning = np.array([_may_own(type(sweep.objects[k])) for k in sweep.type_first[kinds].tolist()], dtype=bool)
    places = untracked[np.isin(sweep.type_index[untracked], kinds[owning])]
    places = np.union1d(places, native.of_type(BytesIO))
    places = places[refcounts.unexplained[places] == 0]
    owned = {k: owned_bytes(sweep.objects[k]) for k in places.tolist()}
    large = np.array([k for k, size in owned.items() if size >= LARGE], dtype=np.int64)
    return {k: owned[k] for k in large[~_of_earlier_snapshots(native, large)].tolist()}


def _of_earlier_snapshots(native: NativeGraph, places: Ints) -> NDArray[np.bool_]:
    """Which of these a HeapGraph owns, directly or through its dict: `check` keeps its snapshots until
    it judges them.
    """
    graphs, dicts = (np.flatnonzero(native.sweep.type_list == id(kind)) for kind in (HeapGraph, dict))
    kinds = native.sweep.type_index
    into = native.references.into(places)
    of_dicts = native.references.into(np.unique(into.holder[np.isin(kinds[into.holder], dicts)]))
    of_graphs = of_dicts.held[np.isin(kinds[of_dicts.holder], graphs)]
    kept = np.isin(kinds[into.holder], graphs) | np.isin(into.holder, of_graphs)
    return np.isin(places, into.held[kept])


def _may_own(kind: type) -> bool:
    return kind is bytes or kind is bytearray or kind is BytesIO or np.ndarray in mro(kind)


def owned_bytes(obj: Any) -> int:
    """Bytes that the object itself allocated; 0 if it is of another type or holds objects."""
    kind = type(obj)
    if kind is bytes or kind is bytearray or kind is BytesIO:
        return sys.getsizeof(obj)
    if (
        np.ndarray not in mro(kind)
        or _OF_ARRAY["dtype"].__get__(obj).hasobject
        or not _OF_ARRAY["flags"].__get__(obj).owndata
    ):
        return 0
    return int(_OF_ARRAY["nbytes"].__get__(obj))


MAX_LEVELS = 100
"""Levels above memory up to which only ancestors are visited; beyond, the whole heap is. Heuristic."""


@dataclass(frozen=True)
class PrunedHeap:
    """The pruned heap: indexes of the kept objects in ascending order, and the references among them, by referrer."""

    objects: Ints
    references: References
    modules: dict[int, str]
    """Index of a module's namespace, mapped to the module's name."""
    arrays: dict[int, int]
    """Index of each array, bytes or BytesIO that owns memory, mapped to its bytes."""
    roots: NDArray[np.bool_]
    """Objects that are alive regardless of referrers: module namespaces, running frames, leakscope's own."""


def module_namespaces(native: NativeGraph) -> dict[int, str]:
    """Index and name of every loaded module's `__dict__`; calls no module `__getattr__`."""
    loaded = [
        (name, id(module_dict(module)))
        for name, module in list(sys.modules.items())
        if type(name) is str and (type(module) is ModuleType or ModuleType in mro(type(module)))
    ]
    spawned = globals_of_spawned_main()
    if spawned is not None:
        loaded.append(("__main__", id(spawned)))
    names: dict[int, str] = {}
    for (name, _), index in zip(loaded, native.find_all([address for _, address in loaded]), strict=True):
        if index >= 0:
            names.setdefault(index, name)
    return names


def prune(native: NativeGraph, refcounts: Refcounts, own: set[int], gaining: Collection[int] = ()) -> PrunedHeap:
    """Keep the ancestors of storages, of arrays that own memory, and of containers that are `gaining` other objects.

    Module namespaces and running frames are roots. `own` are indexes of leakscope's objects, which are left out. The
    reference from an instance to its class is not followed: otherwise every instance would lead to the memory that the
    class holds.
    """
    references, modules = native.references, module_namespaces(native)
    stops = np.zeros(references.count, dtype=bool)
    stops[[*modules, *native.running]] = True
    out = np.zeros(references.count, dtype=bool)
    out[list(own)] = True
    arrays = arrays_of(native, refcounts)
    memory = np.append(np.arange(references.objects, references.count), np.asarray([*arrays, *gaining], dtype=np.int64))
    objects, kept = ancestors(native.sweep, references, refcounts.idle, memory, stops, out)
    return PrunedHeap(objects, kept, modules, arrays, stops | out)


def ancestors(
    heap: Sweep, every: ReferenceTable, idle: Places, memory: Ints, stops: NDArray[np.bool_], out: NDArray[np.bool_]
) -> tuple[Ints, References]:
    """All ancestors of memory except `out`, in ascending order, and their references by referrer.

    Paths start at `stops`, and none leads through `idle` storage objects. Visits level by level as long as there are
    few levels.
    """

    def paths(held: Ints) -> References:
        """The references to some objects that are part of paths."""
        references = every.into(held[~stops[held] & ~out[held]])
        usable = ~out[references.holder]
        usable &= ~np.isin(references.holder, idle)
        objects = np.flatnonzero(references.held < every.objects)
        kinds = heap.type_index[references.holder[objects]]
        usable[objects[heap.addresses[references.held[objects]] == heap.type_list[kinds]]] = False
        return references.at(usable)

    kept = np.zeros(every.count, dtype=bool)
    parts = [paths(memory[:0])]
    level = np.unique(memory[~out[memory]])
    for _ in range(MAX_LEVELS):
        if len(level) == 0:
            break
        check_deadline()
        kept[level] = True
        parts.append(paths(level))
        holders = parts[-1].holder
        level = np.unique(holders[~kept[holders]])
    else:
        everywhere = paths(np.arange(every.count))
        kept |= reachable(every.count, everywhere.held, everywhere.holder, np.append(np.flatnonzero(kept), level))
        parts = [everywhere.at(kept[everywhere.held])]
    references = together(parts)
    return np.flatnonzero(kept), references.at(np.lexsort((references.held, references.holder)))


def find_hook_owners(native: NativeGraph, refcounts: Refcounts, pruned: PrunedHeap) -> NativeGraph:
    """Find the grad nodes behind hook and metadata dicts without a known owner; the same graph if there are none.

    The dicts are searched in the memory of the nodes: `node.metadata` and `node.register_hook` would create missing
    ones.
    """
    objects, first = native.sweep.objects, native.references.objects
    unexplained = pruned.objects[refcounts.unexplained[pruned.objects] > 0].tolist()
    missing = {id(objects[k]): k for k in unexplained if k < first and _may_hang_on_node(objects[k])}
    nodes = np.flatnonzero(native.role == Role.GRAD_NODE).tolist()
    if not missing or not nodes:
        return native
    found = CppReferences()
    with own_memory() as words:
        layout = node_layout(words)
        if not layout.pre_hooks:
            return replace(native, problems=(*native.problems, "the hooks of grad nodes cannot be read in this torch"))
        for index in nodes:
            for name, address in dicts_of_node(objects[index], layout, words):
                at = missing.get(address)
                if at is not None and (name == "metadata" or _is_hook_dict(objects[at])):
                    found.add(index, at, ReferenceKind.HOOK, name, 1)
                    if name != "tensor hook":  # several nodes may keep the hooks of one tensor
                        del missing[address]
    return replace(native, extra=native.extra + found) if found.holder else native


def _may_hang_on_node(obj: Any) -> bool:
    return _is_hook_dict(obj) or _is_metadata(obj)


def _is_hook_dict(obj: Any) -> bool:
    if not _exact_dict(obj) or not len(obj):
        return False
    return all_keys_are(int, obj)


def _is_metadata(obj: Any) -> bool:
    return type(obj) is dict and any(map(is_, map(type, dict.keys(obj)), repeat(str)))


def _exact_dict(obj: Any) -> bool:
    return type(obj) is dict or type(obj) is OrderedDict


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The unreachable objects of the pruned heap, and all their ancestors."""

    objects: Ints
    """Indexes in ascending order."""
    references: References
    """All references among them."""


def find_unreachable(references: ReferenceTable, refcounts: Refcounts, pruned: PrunedHeap) -> Unreachable:
    """Follow `deduce_unreachable` in CPython's gcmodule.c: an object with more references than were found is alive.

    Whatever a live object or a root of the pruned heap reaches is alive too. Ancestors of memory have only ancestors as
    referrers, so nothing else is visited.
    """
    alive = refcounts.unexplained > 0
    alive |= pruned.roots
    alive[_reached(pruned.objects, pruned.references, alive)] = True
    members, parts = _holders_of(references, pruned.objects[~alive[pruned.objects]], alive)
    among = together(parts) if parts else pruned.references.at(np.zeros(0, dtype=np.int64))
    alive[_reached(members, among, alive)] = True
    dead = members[~alive[members]]
    return Unreachable(dead, among.at(~alive[among.holder] & ~alive[among.held]))


def _reached(objects: Ints, references: References, alive: NDArray[np.bool_]) -> Ints:
    """Which of the objects (ascending) can be reached from the live ones among them."""
    holder, held = np.searchsorted(objects, references.holder), np.searchsorted(objects, references.held)
    reached: Ints = objects[reachable(len(objects), holder, held, np.flatnonzero(alive[objects]))]
    return reached


def _holders_of(references: ReferenceTable, objects: Ints, alive: NDArray[np.bool_]) -> tuple[Ints, list[References]]:
    """Return (these objects with all ancestors up to live ones, every reference to the unreachable among them)."""
    members = np.zeros(references.count, dtype=bool)
    parts: list[References] = []
    level = objects
    for _ in range(MAX_LEVELS):
        check_deadline()
        members[level] = True
        level = level[~alive[level]]
        if len(level) == 0:
            return np.flatnonzero(members), parts
        parts.append(references.into(level))
        level = np.unique(parts[-1].holder[~members[parts[-1].holder]])
    return np.arange(references.count), [references.into(np.arange(references.count))]


def freed_by(native: NativeGraph, unreachable: Unreachable, objects: Ints) -> Ints:
    """For each object 0 if it is alive, k if the k-th full collection frees it, else IMMORTAL.

    Reference counting then frees what only freed objects held. The next collection sees more, because a tensor shows
    its grad_fn only while C++ does not own it too (pytorch#7343).
    """
    freed = np.zeros(len(objects), dtype=np.int64)
    dead, references = unreachable.objects, unreachable.references
    if len(dead) == 0:
        return freed
    role = np.zeros(len(dead), dtype=np.int8)
    python = dead < native.references.objects
    role[python] = native.role[dead[python]]
    garbage = Garbage(
        count=len(dead),
        holder=np.searchsorted(dead, references.holder),
        held=np.searchsorted(dead, references.held),
        python=references.python,
        seen=references.seen,
        plain=references.extra < 0,
        tracked=(dead < native.sweep.tracked) | (role > 0),
        role=role,
    )
    rounds = garbage.rounds()
    place = np.minimum(np.searchsorted(dead, objects), len(dead) - 1)
    among = dead[place] == objects
    freed[among] = rounds[place[among]]
    return freed


@dataclass(frozen=True, eq=False)
class Liveness:
    """What is alive and why: the third phase of a snapshot."""

    native: NativeGraph
    refcounts: Refcounts
    pruned: PrunedHeap
    freed: Ints
    """The result of `freed_by` for each object of the pruned heap."""
    gaining: Collection[int]
    """Indexes of containers that keep gaining non-tensor objects."""
    problems: tuple[str, ...]
    """What could not be judged, in sentences."""


def find_liveness(native: NativeGraph, own: set[int], gaining: Collection[int] = ()) -> Liveness:
    """Compare references found with reference counts; `own` are indexes of leakscope's objects."""
    refcounts = explain_refcounts(native)
    pruned = prune(native, refcounts, own, gaining)
    with_hooks = find_hook_owners(native, refcounts, pruned)
    if with_hooks.extra is not native.extra:
        refcounts = explain_refcounts(with_hooks)
        pruned = prune(with_hooks, refcounts, own, gaining)
    native, problems = with_hooks, with_hooks.problems
    unreachable = find_unreachable(native.references, refcounts, pruned)
    moved = _changed_since(native, unreachable)
    if len(moved):
        unexplained = refcounts.unexplained.copy()
        unexplained[moved] = 1
        refcounts = replace(refcounts, unexplained=unexplained)
        problems = (*problems, f"{len(moved)} objects changed while they were looked at and are left unjudged")
        pruned = prune(native, refcounts, own, gaining)
        unreachable = find_unreachable(native.references, refcounts, pruned)
    freed = freed_by(native, unreachable, pruned.objects)
    return Liveness(native, refcounts, pruned, freed, gaining, problems)


def _changed_since(native: NativeGraph, unreachable: Unreachable) -> Ints:
    """Objects that seem unreachable and have changed since the sweep, or that the Python reader counted after their
    last owner had released them: another thread has or had them, so they count as alive.
    """
    dead = unreachable.objects[unreachable.objects < native.sweep.tracked]
    return np.union1d(changed(native, dead), dead[native.sweep.counts[dead] == 0])
