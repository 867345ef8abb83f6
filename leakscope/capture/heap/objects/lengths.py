"""Which containers have grown since the last look? Told by addresses and lengths: nothing is kept alive."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.python.address_book import Ints

_MOST_KEPT = 1 << 17
"""Containers whose lengths are kept between looks, the longest ones, chosen: 3 MiB."""


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

    def at(self, places: Ints) -> Containers:
        """Those at these places."""
        return Containers(self.addresses[places], self.lengths[places], self.firsts[places])


class Lengths:
    """How long each container was at the last look.

    That is kept in pages of its own (`mmap`), which glibc's count of what the program has taken does not see.
    """

    __slots__ = ("_last", "_seen", "_shortest")

    def __init__(self) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        self._last = Containers(nothing, nothing, nothing)
        """In the order of their addresses."""
        self._shortest = 0
        """No container that was shorter than this is kept."""
        self._seen: list[Containers] = []

    def not_shorter(self, containers: Containers) -> Ints:
        """Places of those that were there at the last look, no longer than now; all are noted for the next look."""
        self._seen.append(containers)
        last = self._last
        if len(last.addresses) == 0:
            return np.zeros(0, dtype=np.int64)
        long_enough = np.flatnonzero(containers.lengths >= self._shortest)
        now = containers.at(long_enough)
        before = last.at(np.minimum(np.searchsorted(last.addresses, now.addresses), len(last.addresses) - 1))
        same: NDArray[np.bool_] = (
            (before.addresses == now.addresses)
            & (before.firsts == now.firsts)
            & (before.lengths <= now.lengths)
            & (before.lengths > 0)
        )
        return long_enough[same]

    def before(self, addresses: Ints) -> Ints:
        """How long these containers, which were there, were at the last look."""
        return self._last.lengths[np.searchsorted(self._last.addresses, addresses)]

    def end_look(self) -> None:
        """What was noted is from now on what there was at the last look."""
        seen, self._seen = self._seen, []
        if not seen:
            return
        addresses, first = np.unique(np.concatenate([c.addresses for c in seen]), return_index=True)
        lengths = np.concatenate([c.lengths for c in seen])[first]
        firsts = np.concatenate([c.firsts for c in seen])[first]
        kept = Containers(addresses, lengths, firsts)
        self._shortest = 0
        if len(addresses) > _MOST_KEPT:
            kept = kept.at(np.sort(np.argpartition(lengths, -_MOST_KEPT)[-_MOST_KEPT:]))
            self._shortest = int(kept.lengths.min())
        self._last = Containers(*map(_in_own_pages, (kept.addresses, kept.lengths, kept.firsts)))


def _in_own_pages(values: Ints) -> Ints:
    if len(values) == 0:
        return values
    pages = mmap.mmap(-1, 8 * len(values), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept = np.frombuffer(pages, dtype=np.int64)
    kept[:] = values
    return kept
