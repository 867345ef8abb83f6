"""The heap read in Python, a chunk of objects at a time: for where there is no native reader."""

from __future__ import annotations

import gc
from itertools import chain
from typing import Any

import numpy as np

from leakscope.capture.heap.python.address_book import AddressBook, Ints, Places, addresses_in, addresses_of
from leakscope.capture.heap.python.columns import HeapColumns, UntrackedDicts, counts_of
from leakscope.capture.heap.python.untracked import UntrackedContainers, read_further

_CHUNK = 20_000
"""Objects whose referents are listed at once, chosen: the lists of a large heap are never all there together."""


def read(objects: list[Any], with_dicts: bool) -> HeapColumns:
    """All that a sweep asks of these objects, as `native_reader.read` gives it."""
    n = len(objects)
    counts = counts_of(objects)
    addresses = addresses_of(objects, n)
    types = addresses_of(map(type, objects), n)
    book = AddressBook(addresses)
    holders: list[Places] = []
    helds: list[Places] = []
    all_lengths: list[Places] = []
    firsts: list[Ints] = []
    inside: list[Places] = []
    untracked = UntrackedContainers(with_dicts)
    for start in range(0, n, _CHUNK):
        lists = list(map(gc.get_referents, objects[start : start + _CHUNK]))
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        all_lengths.append(lengths.astype(np.int32))
        flat = np.fromiter(chain.from_iterable(lists), dtype=object, count=int(lengths.sum()))
        del lists
        holder = np.repeat(np.arange(start, start + len(lengths), dtype=np.int32), lengths)
        flat_addresses = addresses_in(flat)
        firsts.append(_firsts(flat_addresses, lengths, types[start : start + len(lengths)]))
        held = book.find(flat_addresses)
        known = held >= 0
        holders.append(holder[known])
        helds.append(held[known])
        inside.append(np.bincount(holder[known] - start, minlength=len(lengths)).astype(np.int32))
        untracked.add(flat[~known].tolist(), holder[~known])
        del flat
    others = read_further(untracked, book, n)
    more = len(others.objects)
    types = np.concatenate([types, addresses_of(map(type, others.objects), more)])
    index, type_list, type_first = _numbered(types)
    return HeapColumns(
        addresses=np.concatenate([addresses, addresses_of(others.objects, more)]),
        type_index=index,
        type_list=type_list,
        type_first=type_first,
        counts=np.concatenate([counts, others.counts]),
        lengths=_joined(all_lengths, np.int32),
        firsts=_joined(firsts, np.int64),
        starts=np.cumsum(np.concatenate([[0], *inside]), dtype=np.int32),
        holder=_joined([*holders, others.holder], np.int32),
        held=_joined([*helds, others.held], np.int32),
        untracked=others.objects,
        arrays=others.arrays,
        dicts=UntrackedDicts(*(_joined(column, np.int64) for column in untracked.dicts)),
        book=book,
    )


def _joined(parts: list[Any], dtype: type) -> Any:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts]).astype(dtype, copy=False)


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
