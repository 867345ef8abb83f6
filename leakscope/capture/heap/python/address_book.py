"""Where among the objects of the heap does the one at this address stand?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.originals import mmap

Ints = NDArray[np.int64]
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
