"""What has each container gained since looks have seen it?"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.objects.gain import Gain
from leakscope.capture.heap.objects.items import Item, item_text, newest_items, oldest_items
from leakscope.capture.heap.objects.lengths import Containers, Lengths, gained, kept_lengths
from leakscope.capture.heap.objects.linked import LinkedTypes
from leakscope.capture.heap.objects.sizes import Measure, size_of
from leakscope.capture.heap.python.address_book import Ints
from leakscope.capture.heap.python.columns import UntrackedDicts
from leakscope.capture.heap.python.gc_heap import Sweep
from leakscope.capture.heap.python.untracked import LARGE
from leakscope.capture.heap.raw_types import container_base

_MOST_MEASURED = 256
"""Containers that one look measures, those that have gained most items, chosen."""
_FIRST = 1 << 40
"""Added to what a container has gained that had gained before: those come first."""
_MANY_DICTS, _FEW_ITEMS = 1 << 17, 16
"""Dicts of numbers and texts of a look from which on the short ones among them are taken to be data, chosen."""
_WITHOUT_FIRST = (set, collections.deque)
"""Of these the first item is another one as soon as an item is put in, or taken out."""
_CALLED = (types.FunctionType, types.MethodType, functools.partial)
"""Types that a hook has; one with a `__call__` of its own is found by its bytes alone."""
_MOST_TOLD = 32
"""Containers that one look tells of, those that have gained most bytes, chosen."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A container that has grown."""

    index: int
    """In the sweep."""
    container: Any
    length: int
    """References that it has now."""


class Gains:
    """What containers gain over the looks of one process."""

    __slots__ = ("_grown", "_lengths", "_of", "linked")

    def __init__(self) -> None:
        self.linked = LinkedTypes()
        self._lengths = Lengths()
        self._of: dict[int, Gain] = {}
        """By the container's address."""
        self._grown: set[int] = set()
        """Addresses of the dicts that have grown and that gc does not track."""

    def growing(self, heap: Sweep, is_container: NDArray[np.bool_]) -> Ints:
        """Indexes of those containers that have gained most, at this look or before; all are noted.

        `is_container` says of each tracked object of the sweep whether it is one.
        """
        last = self._lengths.last
        at = heap.address_book.find(last.addresses).astype(np.int64)
        there = np.flatnonzero((at >= 0) & is_container[at])
        grown = self._most_gained(last.at(there), _columns(heap, at[there]))
        containers = np.flatnonzero(is_container)
        self._lengths.note(_columns(heap, containers[kept_lengths(heap.lengths[containers])]))
        return at[there][grown]

    def growing_dicts(self, dicts: UntrackedDicts) -> Ints:
        """Places of those of some dicts that hold only what gc does not track: it does not track them either."""
        least = 1 if len(dicts.lengths) <= _MANY_DICTS else _FEW_ITEMS
        places = np.flatnonzero(dicts.lengths >= least)
        if len(places) == 0:
            return places
        now = Containers(dicts.addresses[places], dicts.lengths[places], dicts.firsts[places])
        self._lengths.note(now)
        if len(self._lengths.last.addresses) == 0:
            return places[:0]
        grown = self._most_gained(self._lengths.before(now.addresses), now)
        self._grown.update(now.addresses[grown].tolist())
        return places[grown]

    def _most_gained(self, before: Containers, now: Containers) -> Ints:
        """Places of the containers that have gained most, and of those that had gained at earlier looks."""
        more = gained(before, now)
        known = np.isin(now.addresses, np.fromiter(self._of, np.int64, len(self._of)))
        grown = np.flatnonzero((more > 0) | (known & (more == 0)))
        rank = more[grown] + np.where(known[grown], _FIRST, 0)
        return grown[np.argsort(-rank, kind="stable")[:_MOST_MEASURED]]

    def has_grown(self, untracked: dict[Any, Any]) -> bool:
        """Whether a dict that gc does not track was found to have grown, at this look."""
        return id(untracked) in self._grown

    def tell(self, grown: Sequence[Grown], measure: Measure) -> list[tuple[int, Gain]]:
        """(index, gain) of the containers that have gained most bytes; the look is over with that."""
        gains: dict[int, tuple[int, Gain]] = {}
        news = sorted(((new, self._before(new)) for new in grown), key=_items_gained, reverse=True)
        for new, gain in news[:_MOST_MEASURED]:
            if not measure.is_over:
                _add(gain, new.container, measure)
                gains[id(new.container)] = new.index, gain
        self._of = {address: gain for address, (_, gain) in gains.items()}
        self._lengths.end_look()
        self._grown.clear()
        told = sorted(gains.values(), key=lambda numbered: (-numbered[1].is_of_hooks, -numbered[1].bytes))[:_MOST_TOLD]
        return [(index, gain) for index, gain in told if gain.bytes >= LARGE or gain.is_of_hooks]

    def _before(self, new: Grown) -> Gain:
        """What it had gained at the last look."""
        kind = type(new.container)
        known = self._of.get(id(new.container))
        if known is not None and known.type == id(kind):
            return known
        before = int(self._lengths.before(np.array([id(new.container)])).lengths[0]) / new.length
        items = container_base(kind).__len__(new.container)
        return Gain(id(kind), round(items * before), round(size_of(new.container, kind) * before))


def _columns(heap: Sweep, containers: Ints) -> Containers:
    firsts = heap.firsts[containers]
    without_first = np.isin(heap.type_list, [id(kind) for kind in _WITHOUT_FIRST])
    firsts[without_first[heap.type_index[containers]]] = 0
    return Containers(heap.addresses[containers], heap.lengths[containers].astype(np.int64), firsts)


def _items_gained(new: tuple[Grown, Gain]) -> int:
    container = new[0].container
    return int(container_base(type(container)).__len__(container)) - new[1].items


def _add(gain: Gain, container: Any, measure: Measure) -> None:
    """Add what the container has gained since: some of the newest items, measured, stand for all."""
    kind = type(container)
    base = container_base(kind)
    items, own = int(base.__len__(container)), size_of(container, kind)
    more = items - gain.items
    if more > 0:
        newest = newest_items(container, base, more)
        gain.item = item_text(newest)
        gain.is_of_hooks = base is dict and bool(newest) and _is_hook(newest[0])
        size, counted = _measured(newest, more, measure)
        measure.add_block(max(own - gain.own, 0), own)
        size_of_own, counted_of_own = measure.taken()
        gain.bytes += size + size_of_own
        gain.counted += counted + counted_of_own
    if gain.earlier is None:
        gain.earlier = gain.own + _measured(oldest_items(container, base, gain.items), gain.items, measure)[0]
    gain.gained += more
    gain.items, gain.own = items, own


def _is_hook(item: Item) -> bool:
    """Whether an item of a dict is one of `_forward_hooks` and its like: a handle's number, and what is called."""
    return len(item) > 1 and type(item[0]) is int and type(item[1]) in _CALLED


def _measured(some: list[Item], count: int, measure: Measure) -> tuple[float, float]:
    """(bytes, those that malloc's count has) of so many items, of which these are some; the list is emptied."""
    times, parts = count / len(some) if some else 0.0, [part for item in some for part in item]
    some.clear()
    measure.add(parts)
    size, counted = measure.taken()
    return size * times, counted * times
