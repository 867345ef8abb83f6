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
"""Indexes of objects. They take half the memory of addresses, and page faults dominate the cost of a snapshot."""

_REGION_BITS, _PAGE_BITS, _SLOT_BITS = 32, 16, 5
"""Low bits of an address below its region, page and slot. gc puts a 16-byte header before an object whose own head
takes 16 bytes, so no two tracked objects share a slot of 32 bytes (CPython Include/internal/pycore_gc.h). Builds
without that header (free-threaded) sort instead.
"""
_PAGES = 1 << (_REGION_BITS - _PAGE_BITS)
"""Pages in a region."""
_SLOTS = 1 << (_PAGE_BITS - _SLOT_BITS)
"""Slots in a page."""
_TABLE_LIMIT = 64_000_000
"""Maximum slots of the table, four bytes each. Heuristic: addresses too sparse for it are sorted instead."""


class PagedAddressIndex:
    """Maps addresses of objects to indexes in a few nanoseconds each, through regions of pages of slots."""

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
        # Too sparse for a table smaller than the heap, or closer together than a slot.
        self._order = np.argsort(addresses)
        self._sorted = addresses[self._order]

    def _page(self, addresses: Ints) -> Ints:
        region = np.searchsorted(self._regions, addresses >> _REGION_BITS)
        np.minimum(region, len(self._regions) - 1, out=region)
        return (region << (_REGION_BITS - _PAGE_BITS)) | ((addresses >> _PAGE_BITS) & (_PAGES - 1))

    def _slot(self, addresses: Ints, pages: Ints) -> Ints:
        return self._page_of[pages].astype(np.int64) * _SLOTS + ((addresses >> _SLOT_BITS) & (_SLOTS - 1))

    def find(self, addresses: Ints) -> Places:
        """Return the index of each address, -1 where there is no object."""
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
        """Return the index of one address, -1 if there is no object."""
        region = self._region_at.get(address >> _REGION_BITS)
        if region is None:
            return -1
        if self._order is not None:
            return int(self.find(np.array([address], dtype=np.int64))[0])
        page = self._page_of[(region << (_REGION_BITS - _PAGE_BITS)) | ((address >> _PAGE_BITS) & (_PAGES - 1))]
        place = int(self._table[int(page) * _SLOTS + ((address >> _SLOT_BITS) & (_SLOTS - 1))])
        return place if self._addresses[place] == address else -1


@dataclass(frozen=True)
class _ArrayInterface:
    """The array interface through which numpy views memory."""

    __array_interface__: dict[str, Any]


def addresses_of(objects: Iterable[Any], count: int) -> Ints:
    """Return the address of each object."""
    return addresses_in(np.fromiter(objects, dtype=object, count=count))


def addresses_in(objects: NDArray[np.object_]) -> Ints:
    """Return the addresses in an object array, which is an array of pointers (numpy NPY_OBJECT)."""
    memory = objects.__array_interface__["data"]
    return np.array(
        _ArrayInterface({"data": memory, "shape": objects.shape, "typestr": np.dtype(np.int64).str, "version": 3})
    )


def in_own_pages(values: Ints) -> Ints:
    """Copy into pages that glibc's count of allocated memory does not include."""
    if len(values) == 0:
        return values
    pages = mmap.mmap(-1, 8 * len(values), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept = np.frombuffer(pages, dtype=np.int64)
    kept[:] = values
    return kept


MAX_COUNTED = 1 << 30
"""Cap on reference counts: an immortal object of CPython 3.12 and newer reports 2**31 or more (PEP 683)."""


class AddressIndex(Protocol):
    """Maps addresses of tracked objects to their indexes."""

    def find(self, addresses: Ints) -> Places:
        """Return the index of each address, -1 where there is no object."""

    def find_one(self, address: int) -> int:
        """Return the index of one address, -1 if there is no object."""


@dataclass(frozen=True, slots=True)
class UntrackedDicts:
    """Untracked dicts with items, one entry for each reference to them from a tracked object."""

    holders: Ints
    """Indexes of the tracked objects."""
    addresses: Ints
    lengths: Ints
    """Number of items."""
    firsts: Ints
    """Address of the oldest key of each."""


Listing = Callable[[], list[Any]]
"""`gc.get_objects`."""
Growing = Callable[[UntrackedDicts], Ints]
"""Returns the positions of those dicts that have grown."""


def dicts_of(dicts: list[dict[Any, Any]]) -> UntrackedDicts:
    """The columns of these dicts, all with items; they have no referrer."""
    columns = (map(id, dicts), map(len, dicts), map(id, map(next, map(iter, dicts), repeat(None))))
    holders = np.full(len(dicts), -1, dtype=np.int64)
    return UntrackedDicts(holders, *(np.fromiter(column, np.int64, len(dicts)) for column in columns))


@dataclass(frozen=True, slots=True)
class HeapColumns:
    """The result of a heap reader. Fields named as in `Sweep` have the same meaning; `untracked`
    objects are included.
    """

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
    """The tracked objects."""
    untracked: list[Any]
    """Untracked objects that link tracked ones; their indexes follow those of the tracked objects."""
    arrays: Places
    """Positions in `untracked` of numpy arrays and memoryviews, whose referents are not read."""
    dicts: UntrackedDicts
    """Empty unless requested."""
    book: AddressIndex
    let_go: dict[int, int] = field(default_factory=dict)
    """Address of each released tuple, mapped to the index of its stand-in."""


def counts_of(objects: list[Any]) -> Places:
    """Return the reference count of each object, without the reference of the list."""
    counts = np.fromiter(map(sys.getrefcount, objects), dtype=np.int64, count=len(objects)) - LIST_BASELINE
    return in_range(counts)


def in_range(counts: Ints) -> Places:
    """Cap the counts at `MAX_COUNTED`."""
    return np.minimum(counts, MAX_COUNTED).astype(np.int32)


def _measure_baseline() -> int:
    probe = [object()]
    return next(iter(map(sys.getrefcount, probe)))


LIST_BASELINE = _measure_baseline()
"""What `map(sys.getrefcount, objects)` reports for an object that only the list holds."""
