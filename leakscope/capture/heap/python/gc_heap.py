"""One pass over the gc heap: every object, its reference count, and every reference as numbers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from leakscope.capture.heap.python.address_book import AddressBook, Ints, Places, addresses_in, addresses_of
from leakscope.capture.heap.python.untracked import Growing, UntrackedContainers, leads_on, untracked_referents
from leakscope.capture.heap.raw_types import qualified_name

_CHUNK = 20_000
"""Objects whose referents are listed at once, chosen: the lists of a large heap are never all there together."""
_MAX_TYPES = 40
"""Types that a look counts by name, the most frequent ones, chosen: a look's file stays small."""


@dataclass
class Sweep:
    """The heap as it stood: objects alive in `objects` (drop it as soon as possible), the rest in numbers."""

    objects: list[Any]
    addresses: Ints
    types: Ints
    """Address of each object's type."""
    counts: Ints
    """Reference counts without those that the sweep itself added."""
    lengths: Ints
    """How many references CPython's traversal reports of each tracked object, those to untracked ones included."""
    firsts: Ints
    """Address of what each tracked object refers to first, of what a list has at 0; 0 where it refers to nothing."""
    holder: Places
    held: Places
    """One entry per reference that CPython's own traversal reports, with multiplicity."""
    tracked: int
    """The first so many objects are gc-tracked; the others are untracked ones met on the way (arrays, pybind)."""
    address_book: AddressBook
    """Finds the tracked ones."""


def counts_of(objects: list[Any]) -> Ints:
    """Reference count of each object, without the list's own reference."""
    return np.fromiter(map(sys.getrefcount, objects), dtype=np.int64, count=len(objects)) - _LIST_BASELINE


def sweep(growing: Growing | None = None) -> Sweep:
    """Read the whole heap. Call it with gc off (see `paused`).

    `growing` says which dicts are wanted of those that hold only what gc does not track, and are not tracked either.
    """
    objects = gc.get_objects()
    n = len(objects)
    counts = counts_of(objects)
    addresses = addresses_of(objects, n)
    types = addresses_of(map(type, objects), n)
    address_book = AddressBook(addresses)
    holders: list[Places] = []
    helds: list[Places] = []
    all_lengths: list[Ints] = []
    firsts: list[Ints] = []
    untracked = UntrackedContainers(growing)
    for start in range(0, n, _CHUNK):
        lists = list(map(gc.get_referents, objects[start : start + _CHUNK]))
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        all_lengths.append(lengths)
        flat = np.fromiter(chain.from_iterable(lists), dtype=object, count=int(lengths.sum()))
        del lists
        holder = np.repeat(np.arange(start, start + len(lengths), dtype=np.int32), lengths)
        flat_addresses = addresses_in(flat)
        firsts.append(_firsts(flat_addresses, lengths, types[start : start + len(lengths)]))
        held = address_book.find(flat_addresses)
        known = held >= 0
        holders.append(holder[known])
        helds.append(held[known])
        untracked.add(flat[~known].tolist(), holder[~known])
        del flat
    references = np.concatenate(holders), np.concatenate(helds)
    columns = np.concatenate(all_lengths), np.concatenate(firsts)
    heap = Sweep(objects, addresses, types, counts, *columns, *references, n, address_book)
    _append_untracked(heap, untracked)
    _append_grown(heap, untracked)
    return heap


def _firsts(held: Ints, lengths: Ints, types: Ints) -> Ints:
    """Of each object of a chunk the first of what it refers to; a list shows its items from the last to the first."""
    ends = np.cumsum(lengths)
    firsts = np.zeros(len(lengths), dtype=np.int64)
    some = lengths > 0
    firsts[some] = held[np.where(types == id(list), ends - 1, ends - lengths)[some]]
    return firsts


def _append_untracked(heap: Sweep, untracked: UntrackedContainers) -> None:
    """Append untracked objects that may lead to tensors: numpy arrays, memoryviews, pybind objects."""
    index = {address: heap.tracked + k for k, address in enumerate(untracked.objects)}
    holders = [holder for holder, _ in untracked.references]
    helds = [index[address] for _, address in untracked.references]
    objects = list(untracked.objects.values())
    untracked.objects.clear()
    counts = [sys.getrefcount(obj) - _NAMED_BASELINE for obj in objects]
    leading: dict[int, bool] = {}
    k = 0
    while k < len(objects):
        for referent in untracked_referents(objects[k]):
            at = index.get(id(referent))
            if at is None:
                at = heap.address_book.find_one(id(referent))
                if at < 0 and leads_on(referent, leading):
                    at = index[id(referent)] = heap.tracked + len(objects)
                    counts.append(sys.getrefcount(referent) - _NAMED_BASELINE)
                    objects.append(referent)
            if at >= 0:
                holders.append(heap.tracked + k)
                helds.append(at)
        k += 1
    append(heap, objects, np.asarray(counts, dtype=np.int64), holders, helds)


def _append_grown(heap: Sweep, untracked: UntrackedContainers) -> None:
    """Append the dicts that have grown; what they hold leads to nothing."""
    index = {address: len(heap.objects) + k for k, address in enumerate(untracked.grown)}
    objects = list(untracked.grown.values())
    untracked.grown.clear()
    counts = np.asarray([sys.getrefcount(obj) - _NAMED_BASELINE for obj in objects], dtype=np.int64)
    holders = [holder for holder, _ in untracked.references_to_grown]
    append(heap, objects, counts, holders, [index[address] for _, address in untracked.references_to_grown])


def append(heap: Sweep, objects: Sequence[Any], counts: Ints, holders: Sequence[int], helds: Sequence[int]) -> None:
    """Append objects that the gc list does not show, and references by index."""
    heap.objects.extend(objects)
    heap.addresses = np.concatenate([heap.addresses, np.fromiter(map(id, objects), np.int64, len(objects))])
    heap.types = np.concatenate([heap.types, np.fromiter(map(id, map(type, objects)), np.int64, len(objects))])
    heap.counts = np.concatenate([heap.counts, counts])
    heap.holder = np.concatenate([heap.holder, np.asarray(holders, dtype=np.int32)])
    heap.held = np.concatenate([heap.held, np.asarray(helds, dtype=np.int32)])


def type_counts(heap: Sweep) -> dict[str, int]:
    """How many tracked objects of each type there are, most frequent first, as `objgraph.typestats` counts them."""
    _, first, counts = np.unique(heap.types[: heap.tracked], return_index=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MAX_TYPES]
    return {qualified_name(type(heap.objects[first[k]])): int(counts[k]) for k in order.tolist()}


def _measure_baseline() -> int:
    probe = [object()]
    return next(iter(map(sys.getrefcount, probe)))


_LIST_BASELINE = _measure_baseline()
"""What `map(sys.getrefcount, objects)` reports for an object that only the list holds."""
_NAMED_BASELINE = 3
"""References of our own to an object of a list that a loop asks by name: the list's, the name's, the argument's."""
