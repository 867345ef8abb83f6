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
MOST_COUNTED = 1 << 30
"""References that the sweep counts to: an immortal object of CPython 3.12 and newer says 2**31 or more (PEP 683)."""
_MAX_TYPES = 40
"""Types that a look counts by name, the most frequent ones, chosen: a look's file stays small."""


@dataclass
class Sweep:
    """The heap as it stood: objects alive in `objects` (drop it as soon as possible), the rest in numbers."""

    objects: list[Any]
    addresses: Ints
    types: Ints
    """Address of each object's type."""
    type_index: Places
    """Place of each object's type in `type_list`."""
    type_list: Ints
    """Address of each distinct type, in the order in which the objects show them."""
    type_first: Places
    """Index of the first object of each type of `type_list`."""
    counts: Places
    """Reference counts without those that the sweep itself added; `MOST_COUNTED` of an immortal object."""
    lengths: Places
    """How many references CPython's traversal reports of each tracked object, those to untracked ones included."""
    firsts: Ints
    """Address of what each tracked object refers to first, of what a list has at 0; 0 where it refers to nothing."""
    holder: Places
    held: Places
    """One entry per reference that CPython's own traversal reports, with multiplicity: first those from tracked to
    tracked objects, by holder, then those to and from the others."""
    starts: Places
    """Where the references of each tracked object to tracked ones begin in `holder` and `held`, and where all end."""
    tracked: int
    """The first so many objects are gc-tracked; the others are untracked ones met on the way (arrays, pybind)."""
    address_book: AddressBook
    """Finds the tracked ones."""


def counts_of(objects: list[Any]) -> Places:
    """Reference count of each object, without the list's own reference."""
    counts = np.fromiter(map(sys.getrefcount, objects), dtype=np.int64, count=len(objects)) - _LIST_BASELINE
    return _in_range(counts)


def _in_range(counts: Ints) -> Places:
    return np.minimum(counts, MOST_COUNTED).astype(np.int32)


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
    all_lengths: list[Places] = []
    firsts: list[Ints] = []
    inside: list[Places] = []
    untracked = UntrackedContainers(growing)
    for start in range(0, n, _CHUNK):
        lists = list(map(gc.get_referents, objects[start : start + _CHUNK]))
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        all_lengths.append(lengths.astype(np.int32))
        flat = np.fromiter(chain.from_iterable(lists), dtype=object, count=int(lengths.sum()))
        del lists
        holder = np.repeat(np.arange(start, start + len(lengths), dtype=np.int32), lengths)
        flat_addresses = addresses_in(flat)
        firsts.append(_firsts(flat_addresses, lengths, types[start : start + len(lengths)]))
        held = address_book.find(flat_addresses)
        known = held >= 0
        holders.append(holder[known])
        helds.append(held[known])
        inside.append(np.bincount(holder[known] - start, minlength=len(lengths)).astype(np.int32))
        untracked.add(flat[~known].tolist(), holder[~known])
        del flat
    columns = np.concatenate(all_lengths), np.concatenate(firsts)
    references = np.concatenate(holders), np.concatenate(helds)
    starts = np.cumsum(np.concatenate([[0], *inside]), dtype=np.int32)
    index, kinds, first = _numbered(types)
    heap = Sweep(
        objects, addresses, types, index, kinds, first, counts, *columns, *references, starts, n, address_book
    )  # fmt: skip
    _append_untracked(heap, untracked)
    _append_grown(heap, untracked)
    return heap


def _numbered(types: Ints) -> tuple[Places, Ints, Places]:
    """(number of each of these types, the distinct ones in the order of their appearance, where each stands first)."""
    distinct, first, inverse = np.unique(types, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(distinct), dtype=np.int32)
    number[order] = np.arange(len(distinct), dtype=np.int32)
    return number[inverse], distinct[order], first[order].astype(np.int32)


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
    append(heap, objects, _in_range(np.asarray(counts, dtype=np.int64)), holders, helds)


def _append_grown(heap: Sweep, untracked: UntrackedContainers) -> None:
    """Append the dicts that have grown; what they hold leads to nothing."""
    index = {address: len(heap.objects) + k for k, address in enumerate(untracked.grown)}
    objects = list(untracked.grown.values())
    untracked.grown.clear()
    counts = _in_range(np.asarray([sys.getrefcount(obj) - _NAMED_BASELINE for obj in objects], dtype=np.int64))
    holders = [holder for holder, _ in untracked.references_to_grown]
    append(heap, objects, counts, holders, [index[address] for _, address in untracked.references_to_grown])


def append(heap: Sweep, objects: Sequence[Any], counts: Places, holders: Sequence[int], helds: Sequence[int]) -> None:
    """Append objects that the gc list does not show, and references by index."""
    if not objects and not holders:
        return
    _append_types(heap, np.fromiter(map(id, map(type, objects)), np.int64, len(objects)))
    heap.objects.extend(objects)
    heap.addresses = np.concatenate([heap.addresses, np.fromiter(map(id, objects), np.int64, len(objects))])
    heap.counts = np.concatenate([heap.counts, counts])
    heap.holder = np.concatenate([heap.holder, np.asarray(holders, dtype=np.int32)])
    heap.held = np.concatenate([heap.held, np.asarray(helds, dtype=np.int32)])


def _append_types(heap: Sweep, types: Ints) -> None:
    numbers = {kind: k for k, kind in enumerate(heap.type_list.tolist())}
    known = len(numbers)
    index = [numbers.setdefault(kind, len(numbers)) for kind in types.tolist()]
    new, first = np.unique(np.asarray(index, dtype=np.int32), return_index=True)
    heap.type_first = np.concatenate([heap.type_first, (len(heap.types) + first[new >= known]).astype(np.int32)])
    heap.type_list = np.fromiter(numbers, np.int64, len(numbers))
    heap.type_index = np.concatenate([heap.type_index, np.asarray(index, dtype=np.int32)])
    heap.types = np.concatenate([heap.types, types])


def type_counts(heap: Sweep) -> dict[str, int]:
    """How many tracked objects of each type there are, most frequent first, as `objgraph.typestats` counts them."""
    counts = np.bincount(heap.type_index[: heap.tracked])
    order = np.argsort(-counts, kind="stable")[:_MAX_TYPES]
    return {qualified_name(type(heap.objects[heap.type_first[k]])): int(counts[k]) for k in order.tolist()}


def _measure_baseline() -> int:
    probe = [object()]
    return next(iter(map(sys.getrefcount, probe)))


_LIST_BASELINE = _measure_baseline()
"""What `map(sys.getrefcount, objects)` reports for an object that only the list holds."""
_NAMED_BASELINE = 3
"""References of our own to an object of a list that a loop asks by name: the list's, the name's, the argument's."""
