"""Which objects that gc does not track stand between objects that it does?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.python.address_book import Ints, Places, addresses_of
from leakscope.capture.heap.python.columns import Book, counts_of, dicts_of
from leakscope.capture.heap.raw_types import has_gc, mro, type_name
from leakscope.originals import FROZEN_BY_PYTHON, gc

LARGE = 4096
"""Bytes from which memory that is no tensor's is looked at: a page. Small objects come by the million."""

_PLAIN = (type, dict, tuple, list, set, frozenset)
"""Containers that gc does not track hold only what gc does not track (CPython `_PyDict_MaybeUntrack`,
`_PyTuple_MaybeUntrack`): dicts and tuples are asked for arrays, and static types hold nothing that matters here."""
_ASKED = (dict, tuple)
_SIZED = (bytes, bytearray)
HANDLES = ("Work", "Future", "SavedTensor")
"""How the names of pybind's types end whose objects hold tensors, though gc knows nothing of them."""


def may_hold_tracked(kind: type) -> bool:
    """Whether an object that gc does not track may stand between tracked ones: arrays, views, async handles."""
    if any(kind is plain for plain in _PLAIN):
        return False
    bases = mro(kind)
    if np.ndarray in bases or memoryview in bases:
        return True
    return has_gc(kind) or type_name(kind).endswith(HANDLES)


class UntrackedContainers:
    """Referents that gc.get_objects does not show and that may stand between objects that it does."""

    def __init__(self, with_dicts: bool) -> None:
        self.objects: dict[int, Any] = {}
        """By address."""
        self.references: list[tuple[int, int]] = []
        """(index of the holder, address of what it holds)"""
        self.dicts: tuple[list[Ints], ...] = ([], [], [], [])
        """The columns of `UntrackedDicts`, in parts; empty unless asked for."""
        self._with_dicts = with_dicts
        self._kinds = np.zeros(0, dtype=np.int64)
        self._holding = np.zeros(0, dtype=bool)
        self._asked = np.array([id(kind) for kind in _ASKED])
        self._sized = np.array([id(kind) for kind in _SIZED])
        self._freezing = gc.get_freeze_count() > FROZEN_BY_PYTHON  # gc.freeze() hides objects from gc.get_objects

    def add(self, referents: list[Any], holders: Places) -> None:
        """Choose among referents that are no objects of the heap; `holders` says who holds each."""
        types = addresses_of(map(type, referents), len(referents))
        chosen = self._of_holding_types(referents, types)
        sized = np.flatnonzero(np.isin(types, self._sized))
        chosen[sized] = _lengths(referents, sized) >= LARGE
        asked = np.isin(types, self._asked)
        if self._freezing:
            frozen = np.fromiter(map(gc.is_tracked, referents), bool, len(referents))
            asked &= ~frozen
            chosen |= frozen
        chosen[np.flatnonzero(asked)[_leading_on(list(compress(referents, asked.tolist())))]] = True
        if self._with_dicts:
            self._add_dicts(np.flatnonzero(types == id(dict)), referents, holders)
        for place in np.flatnonzero(chosen).tolist():
            self.objects[id(referents[place])] = referents[place]
            self.references.append((int(holders[place]), id(referents[place])))

    def _add_dicts(self, places: Ints, referents: list[Any], holders: Places) -> None:
        """Note the dicts at these places that have items."""
        places = np.array([place for place in places.tolist() if referents[place]], dtype=np.int64)
        dicts = dicts_of([referents[place] for place in places.tolist()])
        parts: tuple[Ints, ...] = (holders[places].astype(np.int64), dicts.addresses, dicts.lengths, dicts.firsts)
        for column, part in zip(self.dicts, parts, strict=True):
            column.append(part)

    def _of_holding_types(self, referents: list[Any], types: Ints) -> NDArray[np.bool_]:
        """Which are of a type that may hold tracked objects; each type is judged once."""
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
    """The untracked objects that stand between others, and the references to and from them."""

    objects: list[Any]
    counts: Places
    holder: Places
    held: Places
    arrays: Places
    """Places of those that are arrays or memoryviews: what they hold is not read."""


def read_further(untracked: UntrackedContainers, book: Book, tracked: int) -> UntrackedHeap:
    """Go on from the untracked objects found to those that they hold; their indexes follow the `tracked` ones."""
    index = {address: tracked + k for k, address in enumerate(untracked.objects)}
    holders = [holder for holder, _ in untracked.references]
    helds = [index[address] for _, address in untracked.references]
    objects = list(untracked.objects.values())
    untracked.objects.clear()
    leading: dict[int, bool] = {}
    arrays: list[int] = []
    for k, obj in enumerate(objects):  # which grows
        if is_array(type(obj)):
            arrays.append(k)
            continue
        for referent in gc.get_referents(obj):
            at = index.get(id(referent))
            if at is None:
                at = book.find_one(id(referent))
                if at < 0 and leads_on(referent, leading):
                    at = index[id(referent)] = tracked + len(objects)
                    objects.append(referent)
            if at >= 0:
                holders.append(tracked + k)
                helds.append(at)
            del referent
    obj = None  # it would count as one of the last object's
    counts = counts_of(objects)
    columns = (np.asarray(column, dtype=np.int32) for column in (holders, helds, arrays))
    return UntrackedHeap(objects, counts, *columns)


def is_array(kind: type) -> bool:
    """Whether gc cannot read what objects of a type hold: numpy's arrays and memoryviews."""
    return kind is memoryview or np.ndarray in mro(kind)


def untracked_referents(obj: Any) -> Iterable[Any]:
    """What an untracked object holds: an array its base and its object items, anything else what gc says."""
    if issubclass(type(obj), np.ndarray):
        base = np.ndarray.base.__get__(obj)
        held = [] if base is None else [base]
        if np.ndarray.dtype.__get__(obj).hasobject:
            held += [item for item in np.ndarray.view(obj, np.ndarray).ravel().tolist() if item is not None]
        return held
    if type(obj) is memoryview:
        return [obj.obj]
    return gc.get_referents(obj)


def leads_on(obj: Any, holding: dict[int, bool]) -> bool:
    """Whether an object that gc.get_objects does not show stands between others: an array, frozen, or holding one.

    `holding` remembers what is known of each type, by its address.
    """
    waiting = [obj]
    seen = {id(obj)}
    while waiting:
        inner = waiting.pop()
        kind = type(inner)
        holds = holding.get(id(kind))
        if holds is None:
            holds = holding[id(kind)] = may_hold_tracked(kind)
        if (
            holds
            or _is_large(inner)
            or (inner is obj and any(kind is plain for plain in _PLAIN) and gc.is_tracked(inner))
        ):
            return True
        if any(kind is plain for plain in _ASKED) and not gc.is_tracked(inner):
            new = {id(held): held for held in gc.get_referents(inner) if id(held) not in seen}
            seen.update(new)
            waiting += new.values()
    return False


def _leading_on(objects: list[Any]) -> NDArray[np.bool_]:
    """Which untracked dicts and tuples hold an array, large bytes or another such object, at whatever depth.

    The dict of an instance that holds arrays and numbers is one. Each is read once at a depth, however many hold it.
    """
    levels: list[tuple[Ints, Ints, NDArray[np.bool_]]] = []
    """At each depth (place of a holder, place of what it holds one deeper) and which hold one themselves."""
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
