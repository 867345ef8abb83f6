"""Which objects that gc does not track stand between objects that it does?"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.python.address_book import Ints, Places, addresses_of
from leakscope.capture.heap.raw_types import has_gc, mro, type_name

Growing = Callable[[list[dict[Any, Any]]], Ints]
"""Of these dicts, the places of those that have grown."""
LARGE = 4096
"""Bytes from which memory that is no tensor's is looked at: a page. Small objects come by the million."""

_PLAIN = (type, dict, tuple, list, set, frozenset)
"""Containers that gc does not track hold only what gc does not track (CPython `_PyDict_MaybeUntrack`,
`_PyTuple_MaybeUntrack`): dicts and tuples are asked for arrays, and static types hold nothing that matters here."""
_ASKED = (dict, tuple)
_SIZED = (bytes, bytearray)
_HANDLES = ("Work", "Future", "SavedTensor")
"""How the names of pybind's types end whose objects hold tensors, though gc knows nothing of them."""


def may_hold_tracked(kind: type) -> bool:
    """Whether an object that gc does not track may stand between tracked ones: arrays, views, async handles."""
    if any(kind is plain for plain in _PLAIN):
        return False
    bases = mro(kind)
    if np.ndarray in bases or memoryview in bases:
        return True
    return has_gc(kind) or type_name(kind).endswith(_HANDLES)


class UntrackedContainers:
    """Referents that gc.get_objects does not show and that may stand between objects that it does."""

    def __init__(self, growing: Growing | None = None) -> None:
        self.objects: dict[int, Any] = {}
        """By address."""
        self.references: list[tuple[int, int]] = []
        """(index of the holder, address of what it holds)"""
        self.grown: dict[int, Any] = {}
        """Dicts that hold only what gc does not track and have grown since the last look, by address."""
        self.references_to_grown: list[tuple[int, int]] = []
        self._growing = growing
        self._kinds = np.zeros(0, dtype=np.int64)
        self._holding = np.zeros(0, dtype=bool)
        self._asked = np.array([id(kind) for kind in _ASKED])
        self._sized = np.array([id(kind) for kind in _SIZED])
        self._freezing = gc.get_freeze_count() > 0  # gc.freeze() hides objects from gc.get_objects

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
        if self._growing is not None:
            self._add_grown(np.flatnonzero(types == id(dict)), chosen, referents, holders)
        for place in np.flatnonzero(chosen).tolist():
            self.objects[id(referents[place])] = referents[place]
            self.references.append((int(holders[place]), id(referents[place])))

    def _add_grown(self, places: Ints, chosen: NDArray[np.bool_], referents: list[Any], holders: Places) -> None:
        """Add those of the dicts at these places that have grown and are not among the chosen."""
        assert self._growing is not None
        grown = places[self._growing([referents[place] for place in places.tolist()])]
        for place in grown[~chosen[grown]].tolist():
            self.grown[id(referents[place])] = referents[place]
            self.references_to_grown.append((int(holders[place]), id(referents[place])))

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
            waiting += gc.get_referents(inner)
    return False


def _leading_on(objects: list[Any]) -> NDArray[np.bool_]:
    """Which untracked dicts and tuples hold an array, large bytes or another such object, at whatever depth.

    The dict of an instance that holds arrays and numbers is one.
    """
    levels: list[tuple[int, Ints, NDArray[np.bool_]]] = []
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
        levels.append((len(lists), parent[nested], np.bincount(parent[holding], minlength=len(lists)) > 0))
        objects = list(compress(inner, nested.tolist()))
        del lists, inner
    answer = np.zeros(count, dtype=bool)
    for depth, (size, parent, direct) in enumerate(reversed(levels)):
        below = np.bincount(parent[answer], minlength=size) > 0 if depth else False
        answer = direct | below
    return answer


def _lengths(objects: list[Any], places: Ints) -> Ints:
    return np.fromiter(map(len, map(objects.__getitem__, places.tolist())), np.int64, len(places))


def _is_large(obj: Any) -> bool:
    return any(type(obj) is kind for kind in _SIZED) and len(obj) >= LARGE
