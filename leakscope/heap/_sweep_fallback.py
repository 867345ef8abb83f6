"""The sweep in Python, for where `_gc_heap.c` was not built, and untracked objects between tracked ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, filterfalse, repeat
from operator import call, gt, is_, not_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import Ints
from leakscope.heap.address_index import (
    AddressIndex,
    HeapColumns,
    Listing,
    PagedAddressIndex,
    Places,
    UntrackedDicts,
    addresses_in,
    addresses_of,
    counts_of,
    dicts_of,
)
from leakscope.originals import FROZEN_BY_PYTHON, gc
from leakscope.process.gc_control import check_deadline
from leakscope.process.raw_types import TypeCache, has_gc, mro, type_name

LARGE = 4096
"""Minimum size in bytes at which non-tensor memory is considered: one page. Smaller objects occur by the million."""

_PLAIN = (type, dict, tuple, list, set, frozenset)
"""CPython untracks containers that hold only untracked objects (`_PyDict_MaybeUntrack`, `_PyTuple_MaybeUntrack`). Of
these, only dicts and tuples are searched for arrays; static types hold nothing relevant.
"""
_CHECKED_TYPES = (dict, tuple)
_SIZED = (bytes, bytearray)
HANDLES = ("Work", "Future", "SavedTensor")
"""Name suffixes of pybind types whose objects hold tensors although gc does not track them."""


def may_hold_tracked(kind: type) -> bool:
    """Whether an object that gc does not track may link tracked ones: arrays, views, async handles."""
    if any(kind is plain for plain in _PLAIN):
        return False
    bases = mro(kind)
    if np.ndarray in bases or memoryview in bases:
        return True
    return has_gc(kind) or type_name(kind).endswith(HANDLES)


class UntrackedContainers:
    """Referents that `gc.get_objects` does not list and that may link objects that it does list."""

    def __init__(self, with_dicts: bool) -> None:
        self.objects: dict[int, Any] = {}
        """By address."""
        self.references: list[tuple[int, int]] = []
        """(index of the referrer, address of the referent)"""
        self.dicts: tuple[list[Ints], ...] = ([], [], [], [])
        """The columns of `UntrackedDicts`, in parts; empty unless requested."""
        self._with_dicts = with_dicts
        self._kinds = np.zeros(0, dtype=np.int64)
        self._holding = np.zeros(0, dtype=bool)
        self._checked_types = np.array([id(kind) for kind in _CHECKED_TYPES])
        self._sized = np.array([id(kind) for kind in _SIZED])
        self._freezing = gc.get_freeze_count() > FROZEN_BY_PYTHON  # gc.freeze() hides objects from gc.get_objects

    def add(self, referents: list[Any], holders: Places) -> None:
        """Select from referents that are not in the heap; `holders` are their referrers."""
        types = addresses_of(map(type, referents), len(referents))
        chosen = self._of_holding_types(referents, types)
        sized = np.flatnonzero(np.isin(types, self._sized))
        chosen[sized] = _lengths(referents, sized) >= LARGE
        checked = np.isin(types, self._checked_types)
        if self._freezing:
            frozen = np.fromiter(map(gc.is_tracked, referents), bool, len(referents))
            checked &= ~frozen
            chosen |= frozen
        chosen[np.flatnonzero(checked)[_leading_on(list(compress(referents, checked.tolist())))]] = True
        if self._with_dicts:
            self._add_dicts(np.flatnonzero(types == id(dict)), referents, holders)
        for place in np.flatnonzero(chosen).tolist():
            self.objects[id(referents[place])] = referents[place]
            self.references.append((int(holders[place]), id(referents[place])))

    def _add_dicts(self, places: Ints, referents: list[Any], holders: Places) -> None:
        """Record the dicts at these positions that have items."""
        places = np.array([place for place in places.tolist() if referents[place]], dtype=np.int64)
        dicts = dicts_of([referents[place] for place in places.tolist()])
        parts: tuple[Ints, ...] = (holders[places].astype(np.int64), dicts.addresses, dicts.lengths, dicts.firsts)
        for column, part in zip(self.dicts, parts, strict=True):
            column.append(part)

    def _of_holding_types(self, referents: list[Any], types: Ints) -> NDArray[np.bool_]:
        """Which referents have a type that may hold tracked objects; each type is judged once."""
        place = np.searchsorted(self._kinds, types)
        new = place == len(self._kinds)
        new[~new] = self._kinds[place[~new]] != types[~new]
        if new.any():
            kinds, first = np.unique(types[new], return_index=True)
            fresh = [may_hold_tracked(type(referents[k])) for k in np.flatnonzero(new)[first].tolist()]
            order = np.argsort(np.append(self._kinds, kinds))
            self._kinds = np.append(self._kinds, kinds)[order]
            self._holding = np.append(self._holding, fresh).astype(bool)[order]
            place = np.searchsorted(self._kinds, types)
        return self._holding[place] if len(self._kinds) else np.zeros(len(types), dtype=bool)


@dataclass(frozen=True)
class UntrackedHeap:
    """The untracked objects that link tracked ones, and the references to and from them."""

    objects: list[Any]
    counts: Places
    holder: Places
    held: Places
    arrays: Places
    """Positions of arrays and memoryviews, whose referents are not read."""


def read_further(untracked: UntrackedContainers, book: AddressIndex, tracked: int) -> UntrackedHeap:
    """Follow the untracked objects found to those that they hold; indexes continue after the `tracked` ones."""
    index = {address: tracked + k for k, address in enumerate(untracked.objects)}
    holders = [holder for holder, _ in untracked.references]
    helds = [index[address] for _, address in untracked.references]
    objects = list(untracked.objects.values())
    untracked.objects.clear()
    may_hold = TypeCache(may_hold_tracked).of
    arrays: list[int] = []
    for k, obj in enumerate(objects):  # it grows during the loop
        if is_array(type(obj)):
            arrays.append(k)
            continue
        for referent in gc.get_referents(obj):
            at = index.get(id(referent))
            if at is None:
                at = book.find_one(id(referent))
                if at < 0 and leads_on(referent, may_hold):
                    at = index[id(referent)] = tracked + len(objects)
                    objects.append(referent)
            if at >= 0:
                holders.append(tracked + k)
                helds.append(at)
            del referent
    obj = None  # it would be counted as one of the last object
    counts = counts_of(objects)
    columns = (np.asarray(column, dtype=np.int32) for column in (holders, helds, arrays))
    return UntrackedHeap(objects, counts, *columns)


def is_array(kind: type) -> bool:
    """Whether gc cannot read the referents of a type: numpy arrays and memoryviews."""
    return kind is memoryview or np.ndarray in mro(kind)


def untracked_referents(obj: Any) -> Iterable[Any]:
    """Referents of an untracked object: base and object items of an array, otherwise what gc reports."""
    if issubclass(type(obj), np.ndarray):
        base = np.ndarray.base.__get__(obj)
        held = [] if base is None else [base]
        if np.ndarray.dtype.__get__(obj).hasobject:
            held += [item for item in np.ndarray.view(obj, np.ndarray).ravel().tolist() if item is not None]
        return held
    if type(obj) is memoryview:
        return [obj.obj]
    return gc.get_referents(obj)


def leads_on(obj: Any, may_hold: Callable[[type], bool]) -> bool:
    """Whether an untracked object leads to memory: an array, a frozen object, or a container of one.

    `may_hold` is `may_hold_tracked`, cached.
    """
    waiting = [obj]
    seen = {id(obj)}
    while waiting:
        inner = waiting.pop()
        kind = type(inner)
        if (
            may_hold(kind)
            or _is_large(inner)
            or (inner is obj and any(kind is plain for plain in _PLAIN) and gc.is_tracked(inner))
        ):
            return True
        if any(kind is plain for plain in _CHECKED_TYPES) and not gc.is_tracked(inner):
            new = {id(held): held for held in gc.get_referents(inner) if id(held) not in seen}
            seen.update(new)
            waiting += new.values()
    return False


def _leading_on(objects: list[Any]) -> NDArray[np.bool_]:
    """Which untracked dicts and tuples hold an array, large bytes or another such object, at any depth.

    An example is the dict of an instance that holds arrays and numbers. Each container is read once per depth, however
    many referrers it has.
    """
    levels: list[tuple[Ints, Ints, NDArray[np.bool_]]] = []
    """For each depth: (position of a container, position of its item one level deeper), and which hold one directly."""
    count = len(objects)
    while objects:
        lists = list(map(gc.get_referents, objects))
        parent = np.repeat(np.arange(len(lists)), np.fromiter(map(len, lists), np.int64, len(lists)))
        inner = list(chain.from_iterable(lists))
        _, first, inverse = np.unique(np.fromiter(map(id, map(type, inner)), np.int64, len(inner)), True, True)
        types = [type(inner[k]) for k in first.tolist()]
        holding = np.array([may_hold_tracked(kind) for kind in types], dtype=bool)[inverse]
        sized = np.flatnonzero(
            np.array([any(kind is sized_kind for sized_kind in _SIZED) for kind in types], dtype=bool)[inverse]
        )
        holding[sized] = _lengths(inner, sized) >= LARGE
        nested = np.array([kind is dict or kind is tuple for kind in types], dtype=bool)[inverse]
        nested &= ~np.fromiter(map(gc.is_tracked, inner), bool, len(inner))
        shared = list(compress(inner, nested.tolist()))
        objects = list({id(obj): obj for obj in shared}.values())
        place = {id(obj): k for k, obj in enumerate(objects)}
        child = np.array([place[id(obj)] for obj in shared], dtype=np.int64)
        levels.append((parent[nested], child, np.bincount(parent[holding], minlength=len(lists)) > 0))
        del lists, inner, shared
    answer = np.zeros(0 if levels else count, dtype=bool)
    for parent, child, direct in reversed(levels):
        direct[parent[answer[child]]] = True
        answer = direct
    return answer


def _lengths(objects: list[Any], places: Ints) -> Ints:
    return np.fromiter(map(len, map(objects.__getitem__, places.tolist())), np.int64, len(places))


def _is_large(obj: Any) -> bool:
    return any(type(obj) is kind for kind in _SIZED) and len(obj) >= LARGE


_CHUNK = 20_000
"""Objects whose referents are listed at once. Heuristic: bounds the temporary lists of a large heap."""


def read(objects: list[Any] | Listing, with_dicts: bool, *, alone: bool = True) -> HeapColumns:
    """Read the columns of a sweep for these objects, or for `gc.get_objects`, as `read_natively` does.

    Unless this thread is `alone`, a tuple that no other object holds is left out.
    """
    if not isinstance(objects, list):
        objects = objects() if alone else _but_unheld_tuples(objects)
    n = len(objects)
    counts = counts_of(objects)
    addresses = addresses_of(objects, n)
    types = addresses_of(map(type, objects), n)
    book = PagedAddressIndex(addresses)
    holders: list[Places] = []
    helds: list[Places] = []
    all_lengths: list[Places] = []
    firsts: list[Ints] = []
    inside: list[Places] = []
    untracked = UntrackedContainers(with_dicts)
    for start in range(0, n, _CHUNK):
        check_deadline()
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
    """Remove the tuples that no listed object holds.

    C code of another thread may be filling one, and CPython refuses to resize a tuple with a second owner
    (Objects/tupleobject.c, _PyTuple_Resize). No thread runs while all are held: they are visited in one C call.
    """
    every: list[Any] = []
    kept: list[Any] = []
    held: set[int] = set()
    own = {id(every), id(kept)}

    def others() -> Iterator[Any]:
        # excluded by address: these iterators are listed too, and must not hold the list that receives them
        return compress(every, map(not_, map(own.__contains__, map(id, every))))

    def are_tuples(objects: Iterator[Any]) -> Iterator[bool]:
        return map(is_, map(type, objects), repeat(tuple))

    # one more call exhausts both: they are listed too, and must hold nothing by then
    held_tuples = compress(chain(_referents(others()), (None,)), are_tuples(_referents(others())))
    unheld = map(gt, are_tuples(others()), map(held.__contains__, map(id, others())))
    work = chain(
        map(every.extend, map(call, (listing,))),
        map(held.update, (map(id, held_tuples),)),
        compress(others(), map(not_, unheld)),
        map(call, (every.clear,)),
    )
    kept += filterfalse(partial(is_, None), work)  # the return value of the methods
    return kept


def _referents(objects: Iterator[Any]) -> Iterator[Any]:
    return chain.from_iterable(map(gc.get_referents, objects))


def _joined(parts: list[Any], dtype: type) -> Any:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts]).astype(dtype, copy=False)


def _numbered(types: Ints) -> tuple[Places, Ints, Places]:
    """Return (number of each type, distinct types in order of appearance, position of the first of each)."""
    distinct, first, inverse = np.unique(types, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(distinct), dtype=np.int32)
    number[order] = np.arange(len(distinct), dtype=np.int32)
    return number[inverse], distinct[order], first[order].astype(np.int32)


def _firsts(held: Ints, lengths: Ints, types: Ints) -> Ints:
    """The first referent of each object of a chunk; a list reports its items from last to first."""
    ends = np.cumsum(lengths)
    firsts = np.zeros(len(lengths), dtype=np.int64)
    some = lengths > 0
    firsts[some] = held[np.where(types == id(list), ends - 1, ends - lengths)[some]]
    return firsts
