"""The index from address to object of a sweep, and its columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import Ints
from leakscope.originals import mmap

Places = NDArray[np.int32]
"""Indexes of objects: half the memory of addresses, and filling fresh memory is what a look spends its time on."""

_REGION_BITS, _PAGE_BITS, _SLOT_BITS = 32, 16, 5
"""Bits of an address below its region, its page and its slot. gc puts 16 bytes before an object whose own head takes
16: no two tracked ones share a slot of 32 (CPython Include/internal/pycore_gc.h); a build without that header, the
free-threaded one, finds them by sorting."""
_PAGES = 1 << (_REGION_BITS - _PAGE_BITS)
"""Pages of a region."""
_SLOTS = 1 << (_PAGE_BITS - _SLOT_BITS)
"""Slots of a page."""
_TABLE_LIMIT = 64_000_000
"""Slots of the table, four bytes each, chosen: addresses strewn so thinly that they need more are sorted instead."""


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
            places = self._table[self._slot(addresses, self._page(addresses))]
        else:
            nearest = np.minimum(np.searchsorted(self._sorted, addresses), len(self._sorted) - 1)
            places = self._order[nearest].astype(np.int32)
        places[self._addresses[places] != addresses] = -1
        return places

    def find_one(self, address: int) -> int:
        """Index of one address, -1 where no object stands there."""
        region = self._region_at.get(address >> _REGION_BITS)
        if region is None:
            return -1
        if self._order is not None:
            return int(self.find(np.array([address], dtype=np.int64))[0])
        page = self._page_of[(region << (_REGION_BITS - _PAGE_BITS)) | ((address >> _PAGE_BITS) & (_PAGES - 1))]
        place = int(self._table[int(page) * _SLOTS + ((address >> _SLOT_BITS) & (_SLOTS - 1))])
        return place if self._addresses[place] == address else -1


@dataclass(frozen=True)
class _Memory:
    """What numpy asks for to take memory as an array."""

    __array_interface__: dict[str, Any]


def addresses_of(objects: Iterable[Any], count: int) -> Ints:
    """Address of each object."""
    return addresses_in(np.fromiter(objects, dtype=object, count=count))


def addresses_in(objects: NDArray[np.object_]) -> Ints:
    """Address of each object of an array, which is an array of pointers (numpy's NPY_OBJECT), read as numbers."""
    memory = objects.__array_interface__["data"]
    return np.array(_Memory({"data": memory, "shape": objects.shape, "typestr": np.dtype(np.int64).str, "version": 3}))


def in_own_pages(values: Ints) -> Ints:
    """A copy that glibc's count of what the program has taken does not see."""
    if len(values) == 0:
        return values
    pages = mmap.mmap(-1, 8 * len(values), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept = np.frombuffer(pages, dtype=np.int64)
    kept[:] = values
    return kept


MOST_COUNTED = 1 << 30
"""References that the readers count to: an immortal object of CPython 3.12 and newer says 2**31 or more (PEP 683)."""


class Book(Protocol):
    """Where among the tracked objects does the one at this address stand?"""

    def find(self, addresses: Ints) -> Places:
        """Index of each address, -1 where no object stands there."""

    def find_one(self, address: int) -> int:
        """Index of one address, -1 where no object stands there."""


@dataclass(frozen=True, slots=True)
class UntrackedDicts:
    """Dicts with items that gc does not track, one for each reference to them from a tracked object."""

    holders: Ints
    """Indexes of the tracked objects."""
    addresses: Ints
    lengths: Ints
    """Items of each."""
    firsts: Ints
    """Address of the key that each has had for longest."""


Listing = Callable[[], list[Any]]
"""`gc.get_objects`."""
Growing = Callable[[UntrackedDicts], Ints]
"""Of these dicts, the places of those that have grown."""


def dicts_of(dicts: list[dict[Any, Any]]) -> UntrackedDicts:
    """These dicts, all with items, in columns; they have no holder."""
    columns = (map(id, dicts), map(len, dicts), map(id, map(next, map(iter, dicts), repeat(None))))
    holders = np.full(len(dicts), -1, dtype=np.int64)
    return UntrackedDicts(holders, *(np.fromiter(column, np.int64, len(dicts)) for column in columns))


@dataclass(frozen=True, slots=True)
class HeapColumns:
    """What a reader gives; the fields that bear names of `Sweep`'s are those, `untracked` objects among all."""

    addresses: Ints
    type_index: Places
    type_list: Ints
    type_first: Places
    counts: Places
    lengths: Places
    firsts: Ints
    starts: Places
    holder: Places
    held: Places
    """References to and from untracked objects follow those between tracked ones."""
    objects: list[Any]
    """The tracked ones."""
    untracked: list[Any]
    """Objects that gc does not track and that stand between those that it does; their indexes follow the others'."""
    arrays: Places
    """Places in `untracked` of numpy arrays and memoryviews: what they hold is not read."""
    dicts: UntrackedDicts
    """Empty unless asked for."""
    book: Book
    let_go: dict[int, int] = field(default_factory=dict)
    """Address of each tuple that is not held, to the index of the one that stands for it."""


def counts_of(objects: list[Any]) -> Places:
    """Reference count of each object, without the list's own reference."""
    counts = np.fromiter(map(sys.getrefcount, objects), dtype=np.int64, count=len(objects)) - LIST_BASELINE
    return in_range(counts)


def in_range(counts: Ints) -> Places:
    """Counts, none above `MOST_COUNTED`."""
    return np.minimum(counts, MOST_COUNTED).astype(np.int32)


def _measure_baseline() -> int:
    probe = [object()]
    return next(iter(map(sys.getrefcount, probe)))


LIST_BASELINE = _measure_baseline()
"""What `map(sys.getrefcount, objects)` reports for an object that only the list holds."""
