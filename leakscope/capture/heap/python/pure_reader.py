"""The heap read in Python, a chunk of objects at a time: for where there is no native reader."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, compress, filterfalse, repeat
from operator import call, gt, is_, not_
from typing import Any

import numpy as np

from leakscope.capture.heap.python.address_book import AddressBook, Ints, Places, addresses_in, addresses_of
from leakscope.capture.heap.python.columns import HeapColumns, Listing, UntrackedDicts, counts_of
from leakscope.capture.heap.python.untracked import UntrackedContainers, read_further
from leakscope.capture.process.pause import go_on
from leakscope.originals import gc

_CHUNK = 20_000
"""Objects whose referents are listed at once, chosen: the lists of a large heap are never all there together."""


def read(objects: list[Any] | Listing, with_dicts: bool, *, alone: bool = True) -> HeapColumns:
    """All that a sweep asks of these objects, or of what `gc.get_objects` lists, as `native_reader.read` gives it.

    Where this thread is not `alone`, a tuple that no other object holds is left out.
    """
    if not isinstance(objects, list):
        objects = objects() if alone else _but_unheld_tuples(objects)
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
        go_on()
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
        objects=objects,
        untracked=others.objects,
        arrays=others.arrays,
        dicts=UntrackedDicts(*(_joined(column, np.int64) for column in untracked.dicts)),
        book=book,
    )


def _but_unheld_tuples(listing: Listing) -> list[Any]:
    """What is listed without the tuples that nothing of it holds.

    C of another thread's may be filling one, and CPython refuses to resize a tuple that somebody else holds as well
    (Objects/tupleobject.c, _PyTuple_Resize). No thread runs while all are held: they are gone over in one call of C.
    """
    every: list[Any] = []
    kept: list[Any] = []
    held: set[int] = set()
    own = {id(every), id(kept)}

    def others() -> Iterator[Any]:
        # told by address: these iterators are listed too, and must not hold the list that they are put into
        return compress(every, map(not_, map(own.__contains__, map(id, every))))

    def are_tuples(objects: Iterator[Any]) -> Iterator[bool]:
        return map(is_, map(type, objects), repeat(tuple))

    # the one more has both gone over to their ends: they are looked at as well, and must hold nothing by then
    held_tuples = compress(chain(_referents(others()), (None,)), are_tuples(_referents(others())))
    unheld = map(gt, are_tuples(others()), map(held.__contains__, map(id, others())))
    work = chain(
        map(every.extend, map(call, (listing,))),
        map(held.update, (map(id, held_tuples),)),
        compress(others(), map(not_, unheld)),
        map(call, (every.clear,)),
    )
    kept += filterfalse(partial(is_, None), work)  # what the methods answer
    return kept


def _referents(objects: Iterator[Any]) -> Iterator[Any]:
    return chain.from_iterable(map(gc.get_referents, objects))


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
