"""One pass over the gc heap: every object, its reference count, and every reference as numbers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.raw_types import mro

Ints = NDArray[np.int64]
Places = NDArray[np.int32]
"""Indexes of objects: half the memory of addresses, and filling fresh memory is what a look spends its time on."""
_CHUNK = 20_000
_REGION_BITS, _PAGE_BITS, _SLOT_BITS = 32, 16, 5
"""gc puts 16 bytes before an object whose own head takes 16: no two tracked ones share a slot of 32 (CPython
Include/internal/pycore_gc.h); a build without that header, the free-threaded one, finds them by sorting."""
_PAGES = 1 << (_REGION_BITS - _PAGE_BITS)
_SLOTS = 1 << (_PAGE_BITS - _SLOT_BITS)
_TABLE_LIMIT = 64_000_000

_UNTRACKED = (type, dict, tuple, list, set, frozenset)
"""Containers that gc does not track hold only what gc does not track (CPython `_PyDict_MaybeUntrack`,
`_PyTuple_MaybeUntrack`): dicts and tuples are asked for arrays, and static types hold nothing that matters here."""
_ASKED = (dict, tuple)
_SIZED = (bytes, bytearray)
LARGE = 4096
"""Bytes from which memory that is no tensor's is looked at: small objects come by the million."""
_HAVE_GC = 1 << 14


def may_bridge(kind: type) -> bool:
    """Whether an object that gc does not track may stand between tracked ones: arrays, views, async handles."""
    if any(kind is plain for plain in _UNTRACKED):
        return False
    bases = mro(kind)
    if np.ndarray in bases or memoryview in bases:
        return True
    name = type.__dict__["__name__"].__get__(kind)
    return bool(type.__dict__["__flags__"].__get__(kind) & _HAVE_GC) or name.endswith(("Work", "Future", "SavedTensor"))


@dataclass
class Sweep:
    """The heap as it stood: objects alive in `objects` (drop it as soon as possible), the rest in numbers."""

    objects: list[Any]
    addresses: Ints
    types: Ints
    """Address of each object's type."""
    counts: Ints
    """Reference counts without those that the sweep itself added."""
    holder: Places
    held: Places
    """One entry per reference that CPython's own traversal reports, with multiplicity."""
    tracked: int
    """The first so many objects are gc-tracked; the others are untracked ones met on the way (arrays, pybind)."""
    book: AddressBook
    """Finds the tracked ones."""


class AddressBook:
    """Finds the index of an object by its address, a few nanoseconds each: regions of pages of slots."""

    def __init__(self, addresses: Ints) -> None:
        self._addresses = addresses
        self._order: Ints | None = None
        self._regions = np.unique(addresses >> _REGION_BITS)
        self._region_at = {region: k for k, region in enumerate(self._regions.tolist())}
        self._page_of = np.zeros(len(self._regions) * _PAGES, dtype=np.int32)
        pages = self._page(addresses)
        self._page_of[pages] = 1
        used = int(np.count_nonzero(self._page_of))
        if used * _SLOTS <= _TABLE_LIMIT:
            self._page_of[self._page_of > 0] = np.arange(1, used + 1)  # page 0 stays empty, for addresses elsewhere
            self._table = np.zeros((used + 1) * _SLOTS, dtype=np.int32)
            self._table[self._slot(addresses, pages)] = np.arange(len(addresses), dtype=np.int32)
            if (self.find(addresses) == np.arange(len(addresses))).all():
                return
        # Strewn so thinly that the table would be larger than the heap, or closer together than slots tell apart.
        self._order = np.argsort(addresses)
        self._sorted = addresses[self._order]

    def _page(self, addresses: Ints) -> Ints:
        region = np.searchsorted(self._regions, addresses >> _REGION_BITS)
        np.minimum(region, len(self._regions) - 1, out=region)
        return (region << (_REGION_BITS - _PAGE_BITS)) | ((addresses >> _PAGE_BITS) & (_PAGES - 1))

    def _slot(self, addresses: Ints, pages: Ints) -> Ints:
        return self._page_of[pages].astype(np.int64) * _SLOTS + ((addresses >> _SLOT_BITS) & (_SLOTS - 1))

    def find(self, addresses: Ints) -> Places:
        """Index of each address, -1 where no object stands there."""
        if len(self._addresses) == 0:
            return np.full(len(addresses), -1, dtype=np.int32)
        if self._order is None:
            found = self._table[self._slot(addresses, self._page(addresses))]
        else:
            place = np.minimum(np.searchsorted(self._sorted, addresses), len(self._sorted) - 1)
            found = self._order[place].astype(np.int32)
        found[self._addresses[found] != addresses] = -1
        return found

    def find_one(self, address: int) -> int:
        """Index of one address, -1 where no object stands there."""
        region = self._region_at.get(address >> _REGION_BITS)
        if region is None:
            return -1
        if self._order is not None:
            return int(self.find(np.array([address], dtype=np.int64))[0])
        page = self._page_of[(region << (_REGION_BITS - _PAGE_BITS)) | ((address >> _PAGE_BITS) & (_PAGES - 1))]
        found = int(self._table[int(page) * _SLOTS + ((address >> _SLOT_BITS) & (_SLOTS - 1))])
        return found if self._addresses[found] == address else -1


def counts_of(objects: list[Any]) -> Ints:
    """Reference count of each object, without the list's own reference."""
    return np.fromiter(map(sys.getrefcount, objects), dtype=np.int64, count=len(objects)) - _LIST_BASELINE


def addresses_of(objects: Iterable[Any], count: int) -> Ints:
    """Address of each object."""
    return _addresses_in(np.fromiter(objects, dtype=object, count=count))


def _addresses_in(objects: NDArray[np.object_]) -> Ints:
    """Address of each object of an array, which is an array of pointers (numpy's NPY_OBJECT), read as numbers."""
    memory = objects.__array_interface__["data"]
    return np.array(_Memory({"data": memory, "shape": objects.shape, "typestr": np.dtype(np.int64).str, "version": 3}))


@dataclass(frozen=True)
class _Memory:
    """What numpy asks for to take memory as an array."""

    __array_interface__: dict[str, Any]


def sweep() -> Sweep:
    """Read the whole heap. Call it with gc off (see `still`)."""
    objects = gc.get_objects()
    n = len(objects)
    counts = counts_of(objects)
    addresses = addresses_of(objects, n)
    types = addresses_of(map(type, objects), n)
    book = AddressBook(addresses)
    holders: list[Places] = []
    helds: list[Places] = []
    strangers = _Strangers()
    for start in range(0, n, _CHUNK):
        lists = list(map(gc.get_referents, objects[start : start + _CHUNK]))
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        flat = np.fromiter(chain.from_iterable(lists), dtype=object, count=int(lengths.sum()))
        del lists
        holder = np.repeat(np.arange(start, start + len(lengths), dtype=np.int32), lengths)
        held = book.find(_addresses_in(flat))
        known = held >= 0
        holders.append(holder[known])
        helds.append(held[known])
        strangers.meet(flat[~known].tolist(), holder[~known])
        del flat
    result = Sweep(objects, addresses, types, counts, np.concatenate(holders), np.concatenate(helds), n, book)
    _add_bridges(result, book, strangers.bridges, strangers.references)
    return result


class _Strangers:
    """Referents that gc.get_objects does not show; those that may stand between objects are kept as bridges."""

    def __init__(self) -> None:
        self.bridges: dict[int, Any] = {}
        self.references: list[tuple[int, int]] = []
        """(index of the holder, address of the bridge)"""
        self._kinds = np.zeros(0, dtype=np.int64)
        self._bridging = np.zeros(0, dtype=bool)
        self._asked = np.array([id(kind) for kind in _ASKED])
        self._sized = np.array([id(kind) for kind in _SIZED])
        self._freezing = gc.get_freeze_count() > 0  # gc.freeze() hides objects from gc.get_objects

    def meet(self, strange: list[Any], holders: Places) -> None:
        types = addresses_of(map(type, strange), len(strange))
        chosen = self._judged(strange, types)
        sized = np.flatnonzero(np.isin(types, self._sized))
        chosen[sized] = _lengths(strange, sized) >= LARGE
        asked = np.isin(types, self._asked)
        if self._freezing:
            frozen = np.fromiter(map(gc.is_tracked, strange), bool, len(strange))
            asked &= ~frozen
            chosen |= frozen
        chosen[np.flatnonzero(asked)[_leading(list(compress(strange, asked.tolist())))]] = True
        for place in np.flatnonzero(chosen).tolist():
            self.bridges[id(strange[place])] = strange[place]
            self.references.append((int(holders[place]), id(strange[place])))

    def _judged(self, strange: list[Any], types: Ints) -> NDArray[np.bool_]:
        """Which are of a kind that may bridge; each kind is judged once."""
        place = np.searchsorted(self._kinds, types)
        new = place == len(self._kinds)
        new[~new] = self._kinds[place[~new]] != types[~new]
        if new.any():
            kinds, first = np.unique(types[new], return_index=True)
            fresh = [may_bridge(type(strange[k])) for k in np.flatnonzero(new)[first].tolist()]
            order = np.argsort(np.append(self._kinds, kinds))
            self._kinds = np.append(self._kinds, kinds)[order]
            self._bridging = np.append(self._bridging, fresh).astype(bool)[order]
            place = np.searchsorted(self._kinds, types)
        return self._bridging[place] if len(self._kinds) else np.zeros(len(types), dtype=bool)


def _lengths(objects: list[Any], places: Ints) -> Ints:
    return np.fromiter(map(len, map(objects.__getitem__, places.tolist())), np.int64, len(places))


def _is_large(obj: Any) -> bool:
    """Whether it is bytes or a bytearray worth looking at."""
    return any(type(obj) is kind for kind in _SIZED) and len(obj) >= LARGE


def _is_way(obj: Any, judged: dict[int, bool]) -> bool:
    """Whether an object that gc.get_objects does not show stands between others: a bridge, frozen, or with arrays.

    `judged` remembers what is known of each type, by its address.
    """
    waiting = [obj]
    while waiting:
        one = waiting.pop()
        kind = type(one)
        bridging = judged.get(id(kind))
        if bridging is None:
            bridging = judged[id(kind)] = may_bridge(kind)
        if (
            bridging
            or _is_large(one)
            or (one is obj and any(kind is plain for plain in _UNTRACKED) and gc.is_tracked(one))
        ):
            return True
        if any(kind is plain for plain in _ASKED) and not gc.is_tracked(one):
            waiting += gc.get_referents(one)
    return False


def _leading(objects: list[Any]) -> NDArray[np.bool_]:
    """Which untracked dicts and tuples hold an array, large bytes or another bridge, at whatever depth.

    The dict of an instance that holds arrays and numbers is one.
    """
    levels: list[tuple[int, Ints, NDArray[np.bool_]]] = []
    count = len(objects)
    while objects:
        lists = list(map(gc.get_referents, objects))
        parent = np.repeat(np.arange(len(lists)), np.fromiter(map(len, lists), np.int64, len(lists)))
        inner = list(chain.from_iterable(lists))
        _, first, inverse = np.unique(np.fromiter(map(id, map(type, inner)), np.int64, len(inner)), True, True)
        types = [type(inner[k]) for k in first.tolist()]
        bridging = np.array([may_bridge(kind) for kind in types], dtype=bool)[inverse]
        sized = np.flatnonzero(np.array([kind in _SIZED for kind in types], dtype=bool)[inverse])
        bridging[sized] = _lengths(inner, sized) >= LARGE
        nested = np.array([kind is dict or kind is tuple for kind in types], dtype=bool)[inverse]
        nested &= ~np.fromiter(map(gc.is_tracked, inner), bool, len(inner))
        levels.append((len(lists), parent[nested], np.bincount(parent[bridging], minlength=len(lists)) > 0))
        objects = list(compress(inner, nested.tolist()))
        del lists, inner
    answer = np.zeros(count, dtype=bool)
    for depth, (size, parent, direct) in enumerate(reversed(levels)):
        below = np.bincount(parent[answer], minlength=size) > 0 if depth else False
        answer = direct | below
    return answer


def _add_bridges(found: Sweep, book: AddressBook, bridges: dict[int, Any], edges: list[tuple[int, int]]) -> None:
    """Append untracked objects that may lead to tensors: numpy arrays, memoryviews, pybind objects."""
    index = {address: found.tracked + k for k, address in enumerate(bridges)}
    holders = [holder for holder, _ in edges]
    helds = [index[address] for _, address in edges]
    objects = list(bridges.values())
    bridges.clear()
    counts = [sys.getrefcount(obj) - 3 for obj in objects]  # the list, the loop's own name, the argument
    judged: dict[int, bool] = {}
    k = 0
    while k < len(objects):
        for referent in untracked_referents(objects[k]):
            at = index.get(id(referent))
            if at is None:
                known = book.find_one(id(referent))
                if known < 0 and _is_way(referent, judged):
                    at = index[id(referent)] = found.tracked + len(objects)
                    counts.append(sys.getrefcount(referent) - 3)
                    objects.append(referent)
                else:
                    at = known
            if at >= 0:
                holders.append(found.tracked + k)
                helds.append(at)
        k += 1
    extend(found, objects, np.asarray(counts, dtype=np.int64))
    found.holder = np.concatenate([found.holder, np.asarray(holders, dtype=np.int32)])
    found.held = np.concatenate([found.held, np.asarray(helds, dtype=np.int32)])


def extend(found: Sweep, objects: Sequence[Any], counts: Ints) -> None:
    """Append objects that the gc list does not show."""
    found.objects.extend(objects)
    found.addresses = np.concatenate([found.addresses, np.fromiter(map(id, objects), np.int64, len(objects))])
    found.types = np.concatenate([found.types, np.fromiter(map(id, map(type, objects)), np.int64, len(objects))])
    found.counts = np.concatenate([found.counts, counts])


def untracked_referents(obj: Any) -> Iterable[Any]:
    """What an untracked object holds: an array its base and its object items, anything else what gc says."""
    if issubclass(type(obj), np.ndarray):
        base = np.ndarray.base.__get__(obj)
        held = [] if base is None else [base]
        if np.ndarray.dtype.__get__(obj).hasobject:
            held += [item for item in np.ndarray.view(obj, np.ndarray).ravel().tolist() if item is not None]
        return held
    if type(obj) is memoryview:
        return [obj.obj]
    return gc.get_referents(obj)


def _measure_baseline() -> int:
    probe = [object()]
    return next(iter(map(sys.getrefcount, probe)))


_LIST_BASELINE = _measure_baseline()
"""What `map(sys.getrefcount, objects)` reports for an object that only the list holds."""
