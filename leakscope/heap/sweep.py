"""Lists all objects that gc tracks and reads their references in one pass."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress, filterfalse, islice, repeat
from operator import and_, call, is_, is_not, ne
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import Ints
from leakscope.heap import _sweep_fallback
from leakscope.heap._sweep_fallback import HANDLES, LARGE, leads_on, may_hold_tracked, untracked_referents
from leakscope.heap.address_index import (
    LIST_BASELINE,
    MAX_COUNTED,
    AddressIndex,
    Growing,
    HeapColumns,
    Listing,
    Places,
    UntrackedDicts,
    in_range,
)
from leakscope.native import gc_heap
from leakscope.originals import FROZEN_BY_PYTHON, gc
from leakscope.process.frames import is_alone
from leakscope.process.raw_types import TypeCache, qualified_name

_PLACES = ("type_index", "type_first", "counts", "lengths", "starts", "holder", "held", "arrays")
_ADDRESSES = ("addresses", "type_list", "firsts")


class NativeAddressIndex:
    """Maps addresses of tracked objects to their indexes, in C."""

    __slots__ = ("_book",)

    def __init__(self, book: Any) -> None:
        self._book = book

    def find(self, addresses: Ints) -> Places:
        """Return the index of each address, -1 where there is no object."""
        return _array(self._book.find(np.ascontiguousarray(addresses, dtype=np.int64)), np.int32)

    def find_one(self, address: int) -> int:
        """Return the index of one address, -1 if there is no object."""
        place: int = self._book.find_one(address)
        return place


def read_natively(objects: list[Any] | Listing, with_dicts: bool, *, alone: bool = True) -> HeapColumns:
    """Read the columns of a sweep for these objects, or for `gc.get_objects`, in C.

    Unless this thread is `alone`, a tuple that no other object holds is replaced by a copy. Raises `MemoryError` if
    memory is short; nothing is kept then.
    """
    freezing = gc.get_freeze_count() > FROZEN_BY_PYTHON
    columns = gc_heap().read(objects, np.ndarray, HANDLES, LARGE, MAX_COUNTED, freezing, with_dicts, alone)
    holders = _array(columns["dict_holder"], np.int32).astype(np.int64)
    of_dicts = (_array(columns[f"dict_{name}"], np.int64) for name in ("address", "length", "first"))
    return HeapColumns(
        **{name: _array(columns[name], np.int32) for name in _PLACES},
        **{name: _array(columns[name], np.int64) for name in _ADDRESSES},
        objects=columns["objects"],
        untracked=columns["untracked"],
        dicts=UntrackedDicts(holders, *of_dicts),
        book=NativeAddressIndex(columns["book"]),
        let_go=dict(
            zip(
                _array(columns["let_go"], np.int64).tolist(),
                _array(columns["let_go_at"], np.int32).tolist(),
                strict=True,
            )
        ),
    )


def _array(column: Any, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """The numbers of a column, which lives as long as the array."""
    return np.frombuffer(column, dtype=dtype) if memoryview(column).nbytes else np.zeros(0, dtype=dtype)


def _are_not(one: list[Any], every: list[Any]) -> map[bool]:
    """Exclude by address: these iterators are listed too, and must not hold the list that receives them."""
    return map(ne, map(id, every), repeat(id(one)))


def listed(*generations: int) -> tuple[list[Any], set[int]]:
    """Return (what gc lists of these generations, or of all; addresses of all). Tuples are left out while other threads
    run.

    CPython refuses to resize a tuple with a second owner (Objects/tupleobject.c, _PyTuple_Resize), so no thread may run
    while tuples are held: they are listed and dropped in one C call.
    """
    if is_alone():
        objects: list[Any] = []
        for generation in generations or (None,):
            # an existing list may be listed too: if the new one were added to it, each would hold the other
            new = gc.get_objects(generation)
            new += objects
            objects = new
        return objects, set(map(id, objects))
    every: list[Any] = []
    kept: list[Any] = []
    addresses: set[int] = set()
    work = chain(
        map(every.extend, map(gc.get_objects, generations or (None,))),
        map(addresses.update, (map(id, every),)),
        compress(every, map(and_, map(is_not, map(type, every), repeat(tuple)), _are_not(kept, every))),
        map(call, (every.clear,)),
    )
    kept += filterfalse(partial(is_, None), work)  # the methods return None
    return kept, addresses - {id(every), id(kept)}


def listed_at(addresses: Set[int], *generations: int) -> list[Any]:
    """What gc lists at these addresses, of these generations or of all, except tuples. Holds nothing else."""
    every: list[Any] = []
    found: list[Any] = []
    work = chain(
        map(every.extend, map(gc.get_objects, generations or (None,))),
        compress(every, map(addresses.__contains__, map(id, every))),
        map(call, (every.clear,)),
    )
    found += filterfalse(partial(is_, None), work)
    return found


def objects_listed() -> list[Any]:
    """What gc lists, as `listed` returns it, without the addresses, which take longer."""
    return gc.get_objects() if is_alone() else listed()[0]


_list_all = gc.get_objects  # the script may replace it
_MAX_TYPES = 40
"""Types that a snapshot counts by name, the most frequent ones. Heuristic: keeps its file small."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """The heap at one moment: live objects in `objects`, which is cleared after the snapshot, the rest as numbers."""

    objects: list[Any]
    """The only list through which a snapshot holds live objects; those found later are appended."""
    addresses: Ints
    type_index: Places
    """Position of each object's type in `type_list`."""
    type_list: Ints
    """Address of each distinct type, in order of appearance."""
    type_first: Places
    """Index of the first object of each type of `type_list`."""
    counts: Places
    """Reference counts without those of the sweep itself; `MAX_COUNTED` for an immortal object."""
    lengths: Places
    """Number of references that CPython's traversal reports for each tracked object, including those
    to untracked ones.
    """
    firsts: Ints
    """Address of the first referent of each tracked object, for a list the item at 0; 0 if it has none."""
    holder: Places
    held: Places
    """One entry per reference that CPython's traversal reports, with multiplicity: first those between tracked objects,
    by referrer, then those to and from the others.
    """
    starts: Places
    """Where the references of each tracked object to tracked ones start in `holder` and `held`, and the end of all."""
    tracked: int
    """Number of gc-tracked objects, which come first; the rest are untracked objects found on the way
    (arrays, pybind).
    """
    address_book: AddressIndex
    """Maps addresses of the tracked objects to indexes."""
    let_go: dict[int, int]
    """Address of each released tuple, mapped to the index of its stand-in, or of itself once re-acquired."""
    alone: bool
    """Whether no other thread may have run during the sweep."""


def sweep(growing: Growing | None = None, *, alone: bool = True) -> Sweep:
    """Read the whole heap. Call it with gc paused (see `paused`).

    `growing` selects wanted dicts among those that hold only untracked objects and are untracked too. `alone` is False
    if another thread may run during the sweep.
    """
    read = _sweep_fallback.read if gc_heap() is None else read_natively
    columns = read(_list_all, growing is not None, alone=alone)
    objects = columns.objects
    heap = Sweep(
        objects=objects,
        addresses=columns.addresses,
        type_index=columns.type_index,
        type_list=columns.type_list,
        type_first=columns.type_first,
        counts=columns.counts,
        lengths=columns.lengths,
        firsts=columns.firsts,
        holder=columns.holder,
        held=columns.held,
        starts=columns.starts,
        tracked=len(objects),
        address_book=columns.book,
        let_go=columns.let_go,
        alone=alone,
    )
    objects.extend(columns.untracked)
    columns.untracked.clear()
    heap = _with_referents_of_arrays(heap, columns.arrays)
    return heap if growing is None else _with_grown_dicts(heap, columns.dicts, growing)


def _with_referents_of_arrays(heap: Sweep, arrays: Places) -> Sweep:
    """Add the untracked referents of arrays, which may lead to tensors too, and their referents."""
    if len(arrays) == 0:
        return heap
    objects, find = heap.objects, heap.address_book.find_one
    index = {address: heap.tracked + k for k, address in enumerate(heap.addresses[heap.tracked :].tolist())}
    waiting = (heap.tracked + arrays).tolist()
    holders: list[int] = []
    helds: list[int] = []
    may_hold = TypeCache(may_hold_tracked).of
    for k in waiting:  # it grows during the loop
        for referent in untracked_referents(objects[k]):
            at = index.get(id(referent))
            if at is None:
                at = find(id(referent))
                if at < 0 and type(referent) is tuple:
                    at = take_back(heap, referent)
                if at < 0 and leads_on(referent, may_hold):
                    at = index[id(referent)] = len(objects)
                    objects.append(referent)
                    waiting.append(at)
            if at >= 0:
                holders.append(k)
                helds.append(at)
            del referent
    return completed(heap, holders, helds)


def _with_grown_dicts(heap: Sweep, dicts: UntrackedDicts, growing: Growing) -> Sweep:
    """Add the dicts that have grown; their referents lead to nothing."""
    objects, untracked = heap.objects, set(heap.addresses[heap.tracked :].tolist())
    index: dict[int, int] = {}
    holders: list[int] = []
    helds: list[int] = []
    for place in growing(dicts).tolist():
        address, holder = int(dicts.addresses[place]), int(dicts.holders[place])
        if address in untracked:
            continue
        if address not in index:
            held = gc.get_referents(objects[holder])
            found = next((each for each in held if id(each) == address and type(each) is dict), None)
            del held
            if found is None:  # another thread has released it since
                continue
            index[address] = len(objects)
            objects.append(found)
            del found
        holders.append(holder)
        helds.append(index[address])
    return completed(heap, holders, helds)


def take_back(heap: Sweep, obj: tuple[Any, ...]) -> int:
    """Re-acquire a released tuple once a referrer is known and nobody fills it any more. Return its index, or -1.

    Removes its stand-in, whose references to the same items are in no reference count.
    """
    at = heap.let_go.get(id(obj), -1)
    if at >= 0:
        items, copied = gc.get_referents(obj), gc.get_referents(heap.objects[at])
        if len(items) != len(copied) or not all(map(is_, items, copied)):  # replaced by another one
            return -1
        heap.objects[at] = obj
    return at


def completed(heap: Sweep, holders: Sequence[int] = (), helds: Sequence[int] = ()) -> Sweep:
    """Add the numbers of the objects appended to `objects`, with their current counts and their references by index."""
    first = len(heap.addresses)
    count = len(heap.objects) - first
    if not count and not holders:
        return heap
    counts = np.fromiter(map(sys.getrefcount, islice(heap.objects, first, None)), np.int64, count) - LIST_BASELINE
    # the references of tuples that stand in for others are in no count
    stand_ins = (heap.objects[at] for address, at in heap.let_go.items() if id(heap.objects[at]) != address)
    times = Counter(map(id, chain.from_iterable(map(gc.get_referents, stand_ins))))
    addresses = np.fromiter(map(id, islice(heap.objects, first, None)), np.int64, count)
    counts -= np.fromiter(map(times.__getitem__, addresses.tolist()), np.int64, count)
    numbers = {kind: k for k, kind in enumerate(heap.type_list.tolist())}
    known = len(numbers)
    types = map(id, map(type, islice(heap.objects, first, None)))
    index = np.fromiter((numbers.setdefault(kind, len(numbers)) for kind in types), np.int32, count)
    new, first_of = np.unique(index, return_index=True)
    return replace(
        heap,
        addresses=np.concatenate([heap.addresses, addresses]),
        type_index=np.concatenate([heap.type_index, index]),
        type_list=np.fromiter(numbers, np.int64, len(numbers)),
        type_first=np.concatenate([heap.type_first, (first + first_of[new >= known]).astype(np.int32)]),
        counts=np.concatenate([heap.counts, in_range(counts)]),
        holder=np.concatenate([heap.holder, np.asarray(holders, dtype=np.int32)]),
        held=np.concatenate([heap.held, np.asarray(helds, dtype=np.int32)]),
    )


def type_counts(heap: Sweep) -> dict[str, int]:
    """Number of tracked objects of each type, most frequent first, as `objgraph.typestats` counts them."""
    counts = np.bincount(heap.type_index[: heap.tracked])
    order = np.argsort(-counts, kind="stable")[:_MAX_TYPES]
    return {qualified_name(type(heap.objects[heap.type_first[k]])): int(counts[k]) for k in order.tolist()}
