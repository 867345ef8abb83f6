"""One pass over the gc heap: every object, its reference count, and every reference as numbers."""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.autograd import mro

Ints = NDArray[np.int64]
_CHUNK = 50_000
_PAGE_BITS = 16
_SLOT_BITS = 4
_PAGE_MASK = (1 << _PAGE_BITS) - 1
_SLOTS = 1 << (_PAGE_BITS - _SLOT_BITS)
_TABLE_LIMIT = 64_000_000

_UNTRACKED = (type, dict, tuple, list, set, frozenset)
"""Containers that gc does not track hold only what gc does not track (CPython `_PyDict_MaybeUntrack`,
`_PyTuple_MaybeUntrack`): dicts and tuples are asked for arrays, and static types hold nothing that matters here."""
_ASKED = (dict, tuple)
_HAVE_GC = 1 << 14


def may_bridge(kind: type) -> bool:
    """Whether an object that gc does not track may stand between tracked ones: arrays, views, async handles."""
    if any(kind is plain for plain in _UNTRACKED):
        return False
    bases = mro(kind)
    if np.ndarray in bases or memoryview in bases:
        return True
    name = type.__dict__["__name__"].__get__(kind)
    return bool(type.__dict__["__flags__"].__get__(kind) & _HAVE_GC) or name.endswith(("Work", "Future", "SavedTensor"))


@dataclass
class Sweep:
    """The heap as it stood: objects alive in `objects` (drop it as soon as possible), the rest in numbers."""

    objects: list[Any]
    addresses: Ints
    types: Ints
    """Address of each object's type."""
    counts: Ints
    """Reference counts without those that the sweep itself added."""
    holder: Ints
    held: Ints
    """One entry per reference that CPython's own traversal reports, with multiplicity."""
    tracked: int
    """The first so many objects are gc-tracked; the others are untracked ones met on the way (arrays, pybind)."""
    book: AddressBook
    """Finds the tracked ones."""


class AddressBook:
    """Finds the index of an object by its address, a few nanoseconds each: a table of small pages."""

    def __init__(self, addresses: Ints) -> None:
        self._pages = np.unique(addresses >> _PAGE_BITS)
        self._page_list: list[int] = self._pages.tolist()
        self._order: Ints | None = None
        if len(self._pages) * _SLOTS <= _TABLE_LIMIT:
            self._table = np.full(len(self._pages) * _SLOTS, -1, dtype=np.int32)
            page = np.searchsorted(self._pages, addresses >> _PAGE_BITS)
            self._table[page * _SLOTS + _slot(addresses)] = np.arange(len(addresses), dtype=np.int32)
        else:  # objects strewn so thinly that the table would be larger than the heap
            self._order = np.argsort(addresses)
            self._sorted = addresses[self._order]

    def find(self, addresses: Ints) -> Ints:
        """Index of each address, -1 where no object stands there."""
        if len(self._page_list) == 0:
            return np.full(len(addresses), -1, dtype=np.int64)
        if self._order is not None:
            place = np.minimum(np.searchsorted(self._sorted, addresses), len(self._sorted) - 1)
            return np.where(self._sorted[place] == addresses, self._order[place], -1)
        wanted = addresses >> _PAGE_BITS
        page = np.minimum(np.searchsorted(self._pages, wanted), len(self._pages) - 1)
        found = self._table[page * _SLOTS + _slot(addresses)]
        return np.where(self._pages[page] == wanted, found, -1).astype(np.int64)

    def find_one(self, address: int) -> int:
        """Index of one address, -1 where no object stands there."""
        if self._order is not None:
            return int(self.find(np.array([address], dtype=np.int64))[0])
        page = bisect_left(self._page_list, address >> _PAGE_BITS)
        if page == len(self._page_list) or self._page_list[page] != address >> _PAGE_BITS:
            return -1
        return int(self._table[page * _SLOTS + ((address & _PAGE_MASK) >> _SLOT_BITS)])


def _slot(addresses: Ints) -> Ints:
    return (addresses & _PAGE_MASK) >> _SLOT_BITS


def running_frames() -> list[FrameType]:
    """Every frame that runs now, in all threads, innermost first."""
    frames = []
    own = sys._getframe()
    for walk in sys._current_frames().values():
        while walk is not None:
            if walk is not own:
                frames.append(walk)
            walk = walk.f_back  # type: ignore[assignment]
    del own, walk  # a frame that holds itself would outlive this call
    return frames


def counts_of(objects: list[Any]) -> Ints:
    """Reference count of each object, without the list's own reference."""
    return np.fromiter(map(sys.getrefcount, objects), dtype=np.int64, count=len(objects)) - _LIST_BASELINE


def sweep() -> Sweep:
    """Read the whole heap. Call it with gc off (see `still`)."""
    objects = gc.get_objects()
    n = len(objects)
    counts = counts_of(objects)
    addresses = np.fromiter(map(id, objects), dtype=np.int64, count=n)
    types = np.fromiter(map(id, map(type, objects)), dtype=np.int64, count=n)
    book = AddressBook(addresses)
    holders: list[Ints] = []
    helds: list[Ints] = []
    freezing = gc.get_freeze_count() > 0  # gc.freeze() hides objects from gc.get_objects: those are met on the way
    bridges: dict[int, Any] = {}
    bridge_edges: list[tuple[int, int]] = []
    for start in range(0, n, _CHUNK):
        lists = list(map(gc.get_referents, objects[start : start + _CHUNK]))
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        total = int(lengths.sum())
        flat_holder = np.repeat(np.arange(start, start + len(lists), dtype=np.int64), lengths)
        flat_id = np.fromiter(map(id, chain.from_iterable(lists)), dtype=np.int64, count=total)
        held = book.find(flat_id)
        known = held >= 0
        holders.append(flat_holder[known])
        helds.append(held[known])
        unknown = ~known
        strange = list(compress(chain.from_iterable(lists), unknown.tolist()))
        strange_types = np.fromiter(map(id, map(type, strange)), dtype=np.int64, count=len(strange))
        kinds, first, inverse = np.unique(strange_types, return_index=True, return_inverse=True)
        bridging = np.array([may_bridge(type(strange[k])) for k in first.tolist()], dtype=bool)
        odd = np.flatnonzero(bridging[inverse]) if len(kinds) else inverse
        strange_holders = flat_holder[unknown]
        asked = np.isin(strange_types, [id(kind) for kind in _ASKED])
        frozen = np.fromiter(map(gc.is_tracked, strange), bool, len(strange)) if freezing else np.zeros(len(strange), bool)
        asked &= ~frozen
        leads = np.flatnonzero(asked)[_leading(list(compress(strange, asked.tolist())))]
        for place in [*odd.tolist(), *leads.tolist(), *np.flatnonzero(frozen).tolist()]:
            bridges[id(strange[place])] = strange[place]
            bridge_edges.append((int(strange_holders[place]), id(strange[place])))
        del lists, strange
    result = Sweep(objects, addresses, types, counts, np.concatenate(holders), np.concatenate(helds), n, book)
    _add_bridges(result, book, bridges, bridge_edges)
    return result


def _is_way(obj: Any) -> bool:
    """Whether a container stands between others though gc.get_objects does not show it: frozen, or with arrays."""
    if all(type(obj) is not plain for plain in _UNTRACKED):
        return False
    return gc.is_tracked(obj) or (any(type(obj) is plain for plain in _ASKED) and bool(_leading([obj])[0]))


def _leading(objects: list[Any]) -> NDArray[np.bool_]:
    """Which untracked dicts and tuples hold an array or another bridge, at whatever depth.

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
        bridging = np.array([may_bridge(kind) for kind in types], dtype=bool)[inverse]
        nested = np.array([kind is dict or kind is tuple for kind in types], dtype=bool)[inverse]
        nested &= ~np.fromiter(map(gc.is_tracked, inner), bool, len(inner))
        levels.append((len(lists), parent[nested], np.bincount(parent[bridging], minlength=len(lists)) > 0))
        objects = list(compress(inner, nested.tolist()))
        del lists, inner
    answer = np.zeros(count, dtype=bool)
    for depth, (size, parent, direct) in enumerate(reversed(levels)):
        below = np.bincount(parent[answer], minlength=size) > 0 if depth else False
        answer = direct | below
    return answer


def _add_bridges(found: Sweep, book: AddressBook, bridges: dict[int, Any], edges: list[tuple[int, int]]) -> None:
    """Append untracked objects that may lead to tensors: numpy arrays, memoryviews, pybind objects."""
    index = {address: found.tracked + k for k, address in enumerate(bridges)}
    holders = [holder for holder, _ in edges]
    helds = [index[address] for _, address in edges]
    objects = list(bridges.values())
    bridges.clear()
    counts = [sys.getrefcount(obj) - 3 for obj in objects]  # the list, the loop's own name, the argument
    k = 0
    while k < len(objects):
        for referent in untracked_referents(objects[k]):
            at = index.get(id(referent))
            if at is None:
                known = book.find_one(id(referent))
                if known < 0 and (may_bridge(type(referent)) or _is_way(referent)):
                    at = index[id(referent)] = found.tracked + len(objects)
                    counts.append(sys.getrefcount(referent) - 3)
                    objects.append(referent)
                else:
                    at = known
            if at >= 0:
                holders.append(found.tracked + k)
                helds.append(at)
        k += 1
    extend(found, objects, np.asarray(counts, dtype=np.int64))
    found.holder = np.concatenate([found.holder, np.asarray(holders, dtype=np.int64)])
    found.held = np.concatenate([found.held, np.asarray(helds, dtype=np.int64)])


def extend(found: Sweep, objects: Sequence[Any], counts: Ints) -> None:
    """Append objects that the gc list does not show."""
    found.objects.extend(objects)
    found.addresses = np.concatenate([found.addresses, np.fromiter(map(id, objects), np.int64, len(objects))])
    found.types = np.concatenate([found.types, np.fromiter(map(id, map(type, objects)), np.int64, len(objects))])
    found.counts = np.concatenate([found.counts, counts])


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


def _measure_baseline() -> int:
    probe = [object()]
    return next(iter(map(sys.getrefcount, probe)))


_LIST_BASELINE = _measure_baseline()
"""What `map(sys.getrefcount, objects)` reports for an object that only the list holds."""
