"""Who holds this object? The references of a whole heap, in the order of what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leakscope.native import walks

Ints = NDArray[np.int64]
Places = NDArray[np.int32]


class HeldBy:
    """References between `count` objects, found by what is held: sorted once, by counting, linear in the references."""

    def __init__(self, count: int, holder: Places, held: Places) -> None:
        self.count = count
        self._first, self._holder = _rows(count, held, holder)

    def times(self) -> Places:
        """How many references hold each object."""
        return np.diff(self._first)

    def into(self, objects: NDArray[np.integer]) -> tuple[Places, Places]:
        """(holder, held) of every reference to one of these objects, which are told once each."""
        asked = objects[objects < self.count]
        lengths = self._first[asked + 1] - self._first[asked]
        held = np.repeat(asked, lengths).astype(np.int32, copy=False)
        return self._holder[in_rows(self._first[asked], lengths)], held


def _rows(count: int, of: Places, values: Places) -> tuple[Places, Places]:
    """(where the row of each of `count` objects begins, and where all end; the rows): the values of each object."""
    if walks() is not None:
        first, rows = walks().rows(count, np.ascontiguousarray(of), np.ascontiguousarray(values))
        return np.frombuffer(first, dtype=np.int32), np.frombuffer(rows, dtype=np.int32)
    from scipy.sparse import coo_array

    table = coo_array((np.ones(len(of), dtype=bool), (of, values)), shape=(count, count))
    table.has_canonical_format = True  # twice is twice: nothing is to be summed up, which would sort the rows
    table = table.tocsr()
    return table.indptr, table.indices


def in_rows(first: NDArray[np.integer], lengths: NDArray[np.integer]) -> Ints:
    """Places of so many entries from each of these first ones on."""
    ends = np.cumsum(lengths, dtype=np.int64)
    places: Ints = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - lengths), lengths)
    return places


def occurrences(values: NDArray[np.integer], asked: NDArray[np.integer]) -> Ints:
    """How often each of the asked stands among the values, which are sorted."""
    times: Ints = np.searchsorted(values, asked, "right") - np.searchsorted(values, asked, "left")
    return times
