"""What both readers of the heap give: the heap as it stood, in columns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from leakscope.capture.heap.python.address_book import Ints, Places

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
