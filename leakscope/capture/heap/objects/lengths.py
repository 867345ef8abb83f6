"""How long was each container at the last look? Kept by address, as numbers: nothing is kept alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.python.address_book import Ints, in_own_pages

_MOST_KEPT = 1 << 20
"""Containers that are kept between looks, chosen: 24 MiB. With many packages a process has a quarter of that before the
program makes any, and beyond it short lists are forgotten."""
_LONG = 1 << 16
"""Lengths from which on all count as one when the commonest are left out."""


@dataclass(frozen=True, slots=True)
class Containers:
    """Some containers in columns."""

    addresses: Ints
    lengths: Ints
    """How many references each has."""
    firsts: Ints
    """Address of what each has held for longest, 0 where that is not told.

    What is freed leaves its address to another container of the same type, and to one of the same name in each step.
    """

    def at(self, places: Ints | NDArray[np.bool_]) -> Containers:
        """Those at these places."""
        return Containers(self.addresses[places], self.lengths[places], self.firsts[places])


def gained(before: Containers, now: Containers) -> Ints:
    """References that each of the containers has more than before, -1 where it has fewer or is another one."""
    same = (before.addresses == now.addresses) & (before.firsts == now.firsts) & (before.lengths > 0)
    more: Ints = np.where(same, np.maximum(now.lengths - before.lengths, -1), -1)
    return more


def kept_lengths(lengths: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which containers are to be kept, by their lengths: all, or of very many not the commonest, which are of data."""
    if len(lengths) <= _MOST_KEPT:
        return np.ones(len(lengths), dtype=bool)
    cut = np.minimum(lengths, _LONG)
    common = np.bincount(cut)
    rarest = np.argsort(common, kind="stable")
    kept = np.zeros(len(common), dtype=bool)
    kept[rarest[np.cumsum(common[rarest]) <= _MOST_KEPT]] = True
    of_kept: NDArray[np.bool_] = kept[cut]
    return of_kept


class Lengths:
    """The containers of the last look, and those that are noted of this one.

    They are kept in pages of their own (`mmap`), which glibc's count of what the program has taken does not see.
    """

    __slots__ = ("_noted", "last")

    def __init__(self) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        self.last = Containers(nothing, nothing, nothing)
        """In the order of their addresses."""
        self._noted: list[Containers] = []

    def before(self, addresses: Ints) -> Containers:
        """The container of the last look that comes nearest to each of these addresses."""
        return self.last.at(np.minimum(np.searchsorted(self.last.addresses, addresses), len(self.last.addresses) - 1))

    def note(self, containers: Containers) -> None:
        """Keep these for the next look."""
        columns = (containers.addresses, containers.lengths, containers.firsts)
        self._noted.append(Containers(*map(in_own_pages, columns)))

    def end_look(self) -> None:
        """What was noted is from now on what there was at the last look."""
        noted, self._noted = self._noted, []
        if noted:
            addresses, first = np.unique(_column(noted, "addresses"), return_index=True)
            columns = (addresses, *(_column(noted, name)[first] for name in ("lengths", "firsts")))
            self.last = Containers(*map(in_own_pages, columns))


def _column(parts: Sequence[Containers], name: str) -> Ints:
    column: Ints = np.concatenate([getattr(part, name) for part in parts])
    return column
