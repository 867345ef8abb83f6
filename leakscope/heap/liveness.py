"""Reference counts compared with known references: what is alive, what native code holds, what is pruned."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, repeat
from operator import is_
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import HeapGraph, Ints, ReferenceKind
from leakscope.graph.walks import ReferrerIndex, in_rows, occurrences, reachable
from leakscope.heap._sweep_fallback import LARGE
from leakscope.heap.address_index import Places
from leakscope.heap.autograd import Role, dicts_of_node, node_layout, own_memory
from leakscope.heap.native_graph import NativeReferences, uses_of_storages
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
class References:
    """References of the heap in columns."""

    holder: Places
    held: Places
    python: Places
    """Python references that each entry accounts for; 0 if C++ owns the C++ object."""
    extra: Places
    """Index into the extra references, -1 if CPython's traversal reported it."""
    seen: NDArray[np.bool_]
    """Whether gc's own traversal reports the entry."""

    def at(self, places: NDArray[Any]) -> References:
        """Those at these positions."""
        return References(
            self.holder[places], self.held[places], self.python[places], self.extra[places], self.seen[places]
        )


def together(parts: list[References]) -> References:
    """Concatenate references."""
    names = ("holder", "held", "python", "extra", "seen")
    return References(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True)
class RefcountTable:
    """The referrers of each object of the heap, and reference counts that they do not explain.

    Objects are numbered as in the sweep; storages follow, in the order of `NativeReferences.storages`.
    """

    objects: int
    """Number of Python objects; the indexes of storages start here."""
    count: int
    """Number of objects and storages."""
    unexplained: Places
    """References counted but not found; above 0, something unseen holds the object."""
    idle: Places
    """Indexes of storage objects that only C++ keeps: they hold nothing and are freed with the storage."""
    _swept: ReferrerIndex
    _role: NDArray[np.int8]
    _later: References
    """What the walk found beyond the sweep, by referent."""

    def into(self, objects: NDArray[np.integer]) -> References:
        """Every reference to one of these objects or storages."""
        holder, held = self._swept.into(objects)
        twice = _shown_by_cpp(self._role, holder, held)
        if twice.any():
            holder, held = holder[~twice], held[~twice]
        first, last = (np.searchsorted(self._later.held, objects, side) for side in ("left", "right"))
        later = self._later.at(in_rows(first, last - first))
        return together([_plain(holder, held), later])


def explain_refcounts(native: NativeReferences) -> RefcountTable:
    """Compare every reference count with the references found.

    A tensor, a grad node and a storage keep one Python reference for all their C++ owners together
    (c10/util/intrusive_ptr.h: the Python object is increfed when the use count goes from 1 to 2). Their C++ owners are
    counted separately: `_use_count` of tensors and storages less one for the Python object.
    """
    sweep, role, swept = native.sweep, native.role, native.held_by
    n = len(sweep.objects)
    unexplained = np.zeros(n + len(native.storages), dtype=np.int32)
    unexplained[:n] = sweep.counts
    unexplained[: swept.count] -= swept.times()
    later, twice = _later(native)
    np.add.at(unexplained, twice, 1)
    np.subtract.at(unexplained, later.held, later.python)
    wrappers = np.flatnonzero(role == Role.STORAGE)
    lone = wrappers[unexplained[wrappers] == sweep.counts[wrappers]]  # no Python reference to it was found
    owned = np.sort(later.held[(later.python == 0) & (later.extra >= 0)])
    _explain_tensors_and_nodes(native, owned, unexplained)
    memory_holder, memory_held = _explain_storages(native, unexplained)
    np.maximum(unexplained, 0, out=unexplained)
    memory = len(memory_holder)
    nothing, none = np.zeros(memory, dtype=np.int32), np.full(memory, -1, dtype=np.int32)
    later = together([later, References(memory_holder, memory_held, nothing, none, np.zeros(memory, dtype=bool))])
    idle = lone[unexplained[lone] == 0].astype(np.int32)
    by_held = later.at(np.argsort(later.held, kind="stable"))
    return RefcountTable(n, len(unexplained), unexplained, idle, swept, role, by_held)


def _shown_by_cpp(role: NDArray[np.int8], holder: Places, held: Places) -> NDArray[np.bool_]:
    """Which references from a tensor or node to a node are C++ references that gc reports and the
    extra ones include.
    """
    to_node: NDArray[np.bool_] = role[held] == Role.GRAD_NODE
    of = role[holder[to_node]]
    to_node[to_node] = (of == Role.TENSOR) | (of == Role.GRAD_NODE)
    return to_node


def _plain(holder: Places, held: Places) -> References:
    count = len(holder)
    ones, none = np.ones(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
    return References(holder, held, ones, none, np.ones(count, dtype=bool))


def _later(native: NativeReferences) -> tuple[References, Places]:
    """What the walk found beyond the sweep, and for each reference of the sweep the extra one that it duplicates."""
    role, extra, n = native.role, native.extra, len(native.sweep.objects)
    nodes = np.flatnonzero(role == Role.GRAD_NODE)
    swept_holder, swept_held = native.held_by.into(nodes)
    twice = _shown_by_cpp(role, swept_holder, swept_held)
    new_holder, new_held = (np.asarray(column, dtype=np.int32) for column in native.later)
    new_twice = _shown_by_cpp(role, new_holder, new_held)
    pairs = _pairs(
        np.append(swept_holder[twice], new_holder[new_twice]), np.append(swept_held[twice], new_held[new_twice]), n
    )
    holder, held = np.asarray(extra.holder, dtype=np.int32), np.asarray(extra.held, dtype=np.int32)
    extras = References(
        holder,
        held,
        np.asarray(extra.python, dtype=np.int32),
        np.arange(len(holder), dtype=np.int32),
        np.isin(_pairs(holder, held, n), pairs),
    )
    return together([_plain(new_holder[~new_twice], new_held[~new_twice]), extras]), swept_held[twice]


def _pairs(holder: Places, held: Places, n: int) -> Ints:
    return holder.astype(np.int64) * n + held


def _explain_tensors_and_nodes(native: NativeReferences, owned: Places, unexplained: Places) -> None:
    """Compare the C++ owners found with those that C++ counts; `owned` lists an object once per owner found."""
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


def _explain_storages(native: NativeReferences, unexplained: Places) -> tuple[Places, Places]:
    """Compare the tensors found over each storage with its C++ owners, and subtract them from its Python object.

    Returns the references to storages.
    """
    first, many = len(native.sweep.objects), len(native.storages)
    holders = [storage.holders for storage in native.storages.values()]
    lengths = np.fromiter(map(len, holders), np.int64, many)
    holder = np.fromiter(chain.from_iterable(holders), np.int32, int(lengths.sum()))
    storage = np.repeat(np.arange(many), lengths)
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
    unexplained[first:] = unseen
    return holder, (storage + first).astype(np.int32)


_OF_ARRAY: Any = np.ndarray.__dict__


def arrays_of(native: NativeReferences, refcounts: RefcountTable) -> dict[int, int]:
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
    return {k: owned[k] for k in large[~_of_earlier_looks(native, refcounts, large)].tolist()}


def _of_earlier_looks(native: NativeReferences, refcounts: RefcountTable, places: Ints) -> NDArray[np.bool_]:
    """Which of these a HeapGraph owns, directly or through its dict: `check` keeps its snapshots until
    it judges them.
    """
    graphs, dicts = (np.flatnonzero(native.sweep.type_list == id(kind)) for kind in (HeapGraph, dict))
    kinds = native.sweep.type_index
    into = refcounts.into(places)
    of_dicts = refcounts.into(np.unique(into.holder[np.isin(kinds[into.holder], dicts)]))
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


MOST_LEVELS = 100
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


def module_namespaces(native: NativeReferences) -> dict[int, str]:
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
    for (name, _), index in zip(loaded, native.places([address for _, address in loaded]), strict=True):
        if index >= 0:
            names.setdefault(index, name)
    return names


def prune(
    native: NativeReferences,
    refcounts: RefcountTable,
    frames: dict[int, str],
    own: set[int],
    gaining: Collection[int] = (),
) -> PrunedHeap:
    """Keep the ancestors of storages, of arrays that own memory, and of containers that are `gaining` other objects.

    Module namespaces and running frames are roots. `own` are indexes of leakscope's objects, which are left out. The
    reference from an instance to its class is not followed: otherwise every instance would lead to the memory that the
    class holds.
    """
    modules = module_namespaces(native)
    stops = np.zeros(refcounts.count, dtype=bool)
    stops[list(modules) + list(frames)] = True
    out = np.zeros(refcounts.count, dtype=bool)
    out[list(own)] = True
    arrays = arrays_of(native, refcounts)
    memory = np.append(np.arange(refcounts.objects, refcounts.count), np.asarray([*arrays, *gaining], dtype=np.int64))
    objects, references = ancestors(native.sweep, refcounts, memory, stops, out)
    return PrunedHeap(objects, references, modules, arrays, stops | out)


def ancestors(
    heap: Sweep, refcounts: RefcountTable, memory: Ints, stops: NDArray[np.bool_], out: NDArray[np.bool_]
) -> tuple[Ints, References]:
    """All ancestors of memory except `out`, in ascending order, and their references by referrer.

    Paths start at `stops`. Visits level by level as long as there are few levels.
    """
    kept = np.zeros(refcounts.count, dtype=bool)
    parts = [_paths(heap, refcounts, memory[:0], stops, out)]
    level = np.unique(memory[~out[memory]])
    for _ in range(MOST_LEVELS):
        if len(level) == 0:
            break
        check_deadline()
        kept[level] = True
        parts.append(_paths(heap, refcounts, level, stops, out))
        holders = parts[-1].holder
        level = np.unique(holders[~kept[holders]])
    else:
        everywhere = _paths(heap, refcounts, np.arange(refcounts.count), stops, out)
        kept |= reachable(refcounts.count, everywhere.held, everywhere.holder, np.append(np.flatnonzero(kept), level))
        parts = [everywhere.at(kept[everywhere.held])]
    references = together(parts)
    return np.flatnonzero(kept), references.at(np.lexsort((references.held, references.holder)))


def _paths(
    heap: Sweep, refcounts: RefcountTable, held: Ints, stops: NDArray[np.bool_], out: NDArray[np.bool_]
) -> References:
    """The references to some objects that are part of paths."""
    references = refcounts.into(held[~stops[held] & ~out[held]])
    usable = ~out[references.holder]
    usable &= ~np.isin(references.holder, refcounts.idle)
    objects = np.flatnonzero(references.held < refcounts.objects)
    kinds = heap.type_index[references.holder[objects]]
    usable[objects[heap.addresses[references.held[objects]] == heap.type_list[kinds]]] = False
    return references.at(usable)


def find_hook_owners(native: NativeReferences, refcounts: RefcountTable, pruned: PrunedHeap) -> bool:
    """Find the grad nodes behind hook and metadata dicts without a known owner; True if any were found.

    The dicts are searched in the memory of the nodes: `node.metadata` and `node.register_hook` would create missing
    ones.
    """
    objects = native.sweep.objects
    unexplained = pruned.objects[refcounts.unexplained[pruned.objects] > 0].tolist()
    missing = {id(objects[k]): k for k in unexplained if k < refcounts.objects and _may_hang_on_node(objects[k])}
    nodes = np.flatnonzero(native.role == Role.GRAD_NODE).tolist()
    if not missing or not nodes:
        return False
    found = False
    with own_memory() as words:
        layout = node_layout(words)
        if not layout.pre_hooks:
            native.problems.append("the hooks of grad nodes cannot be read in this torch")
        for index in nodes:
            for name, address in dicts_of_node(objects[index], layout, words):
                at = missing.get(address)
                if at is not None and (name == "metadata" or _is_hook_dict(objects[at])):
                    native.extra.add(index, at, ReferenceKind.HOOK, name, 1)
                    found = True
                    if name != "tensor hook":  # several nodes may keep the hooks of one tensor
                        del missing[address]
    return found


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
