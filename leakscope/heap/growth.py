"""Containers and linked objects that gain items from snapshot to snapshot."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import ROOTS, HeapGraph, Ints, RootKind
from leakscope.graph.walks import in_rows, reachable
from leakscope.heap._sweep_fallback import LARGE
from leakscope.heap.address_index import UntrackedDicts, in_own_pages
from leakscope.heap.autograd import Role
from leakscope.heap.native_graph import GAINING, OURS, NativeGraph
from leakscope.heap.referents import LRU_CACHE
from leakscope.heap.sizeof import Item, Measure, item_text, newest_items, oldest_items, size_of
from leakscope.heap.sweep import Sweep
from leakscope.process.raw_types import container_base, is_leakscopes, is_of_leakscope, made_in_python, mro, type_name
from leakscope.run.rows import GainingContainer


@dataclass(slots=True)
class Gain:
    """The growth of one container since it was first seen."""

    type: int
    """Address of its type."""
    items: int
    """Current number of items."""
    own: int
    """Bytes of the container itself."""
    earlier: float | None = None
    """Bytes of its contents when first seen; None before they are measured."""
    gained: int = 0
    """Number of items gained."""
    bytes: float = 0.0
    """Measured bytes of the gained items."""
    counted: float = 0.0
    """The part of them that malloc's count includes."""
    is_of_hooks: bool = False
    """Whether it is a dict of hooks, each of which costs time in every step, however small it is."""
    item: str = ""
    """The name of the newest items."""


_MAX_KEPT = 1 << 20
"""Containers kept between snapshots, 24 MiB. Heuristic: a process with many packages starts with a quarter of it;
beyond it, short lists are dropped.
"""
_LONG = 1 << 16
"""Lengths from which on all count as one when the most frequent lengths are left out."""


@dataclass(frozen=True, slots=True)
class Containers:
    """Containers in columns."""

    addresses: Ints
    lengths: Ints
    """Number of references of each."""
    firsts: Ints
    """Address of the oldest referent of each, 0 if unknown.

    A freed container's address is reused by another one of the same type, and of the same name in each step.
    """

    def at(self, places: Ints | NDArray[np.bool_]) -> Containers:
        """The containers at these positions."""
        return Containers(self.addresses[places], self.lengths[places], self.firsts[places])


def gained(before: Containers, now: Containers) -> Ints:
    """References gained by each container, -1 if it has fewer or is another one."""
    same = (before.addresses == now.addresses) & (before.firsts == now.firsts) & (before.lengths > 0)
    more: Ints = np.where(same, np.maximum(now.lengths - before.lengths, -1), -1)
    return more


def kept_lengths(lengths: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Select the containers to keep by length: all, or if there are very many, not those of the most frequent lengths,
    which hold data.
    """
    if len(lengths) <= _MAX_KEPT:
        return np.ones(len(lengths), dtype=bool)
    cut = np.minimum(lengths, _LONG)
    common = np.bincount(cut)
    rarest = np.argsort(common, kind="stable")
    kept = np.zeros(len(common), dtype=bool)
    kept[rarest[np.cumsum(common[rarest]) <= _MAX_KEPT]] = True
    of_kept: NDArray[np.bool_] = kept[cut]
    return of_kept


class Lengths:
    """The containers of the last snapshot and those recorded in this one.

    Stored in mapped pages (`mmap`), which glibc's count of allocated memory does not include.
    """

    __slots__ = ("_noted", "last")

    def __init__(self) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        self.last = Containers(nothing, nothing, nothing)
        """In the order of their addresses."""
        self._noted: list[Containers] = []

    def before(self, addresses: Ints) -> Containers:
        """For each of these addresses, the container of the last snapshot nearest to it."""
        return self.last.at(np.minimum(np.searchsorted(self.last.addresses, addresses), len(self.last.addresses) - 1))

    def note(self, containers: Containers) -> None:
        """Record these for the next snapshot."""
        columns = (containers.addresses, containers.lengths, containers.firsts)
        self._noted.append(Containers(*map(in_own_pages, columns)))

    def end_snapshot(self) -> None:
        """End the snapshot: what was recorded becomes the baseline of the next one."""
        noted, self._noted = self._noted, []
        if noted:
            addresses, first = np.unique(_column(noted, "addresses"), return_index=True)
            columns = (addresses, *(_column(noted, name)[first] for name in ("lengths", "firsts")))
            self.last = Containers(*map(in_own_pages, columns))


def _column(parts: Sequence[Containers], name: str) -> Ints:
    column: Ints = np.concatenate([getattr(part, name) for part in parts])
    return column


_MAX_TYPES = 8
"""Types examined in one snapshot, the most frequent ones. Heuristic."""
_FEWEST = 3
"""Minimum objects of a type to treat it as linked. Heuristic."""
_MAX_HEADS = 0.2
"""Maximum share of objects of a linked type without a referrer of the same type: the heads of the chains."""
_SAMPLED = 8
"""Objects measured per type. Heuristic."""


class LinkedTypes:
    """The growth of types written in Python over the snapshots of one process."""

    __slots__ = ("_counts", "_of", "_types")

    def __init__(self) -> None:
        self._types = self._counts = np.zeros(0, dtype=np.int64)
        self._of: dict[int, Gain] = {}
        """By the address of the type."""

    def take_growth(self, native: NativeGraph, measure: Measure) -> list[tuple[int, Gain]]:
        """Yield (index of an object without a referrer of its type, growth of the type); ends the snapshot."""
        sweep = native.sweep
        kinds = sweep.type_index[: sweep.tracked]
        order = np.argsort(sweep.type_list)
        types = sweep.type_list[order]
        counts = np.bincount(kinds, minlength=len(types))[order]
        before, self._types, self._counts = self._before(types), in_own_pages(types), in_own_pages(counts)
        grown = np.flatnonzero((before > 0) & (counts > before) & (counts >= _FEWEST))
        known, self._of = self._of, {}
        considered = [
            k for k in np.flatnonzero(np.isin(types, list(known))).tolist() if counts[k] >= known[int(types[k])].items
        ]
        considered += grown[np.argsort(before[grown] - counts[grown], kind="stable")].tolist()
        largest: list[tuple[int, Gain]] = []
        one_of = sweep.type_first[order]
        considered = [k for k in dict.fromkeys(considered) if _may_be_linked(type(sweep.objects[one_of[k]]), native)]
        for k in considered[:_MAX_TYPES]:
            at = np.flatnonzero(kinds == order[k])
            heads = self._heads(native, at)
            if 0 < len(heads) <= max(_MAX_HEADS * len(at), 1):
                gain = known.get(int(types[k])) or Gain(int(types[k]), int(before[k]), 0)
                self._of[int(types[k])] = gain
                _add_link(gain, native, at, measure)
                largest.append((int(heads[-1]), gain))
        return [(index, gain) for index, gain in largest if gain.bytes >= LARGE]

    def _before(self, types: Ints) -> Ints:
        """Number of objects of each type at the last snapshot."""
        if len(self._types) == 0:
            return np.zeros(len(types), dtype=np.int64)
        place = np.minimum(np.searchsorted(self._types, types), len(self._types) - 1)
        before: Ints = np.where(self._types[place] == types, self._counts[place], 0)
        return before

    def _heads(self, native: NativeGraph, at: Ints) -> Ints:
        """The objects of one type that no other object of it holds, directly or through its dict."""
        mine = np.zeros(len(native.sweep.objects), dtype=bool)
        mine[at] = True
        holder, held = native.referrers.into(at)
        dicts = np.unique(holder[native.sweep.type_list[native.sweep.type_index[holder]] == id(dict)])
        of_dicts, own = native.referrers.into(dicts)
        linked = held[mine[holder] | np.isin(holder, own[mine[of_dicts]])]
        return np.setdiff1d(at, linked)


def _may_be_linked(kind: type, native: NativeGraph) -> bool:
    """Whether objects of the type are the program's records: not tensors, containers, classes or leakscope's."""
    return (
        made_in_python(kind)
        and native.types.role(kind) is Role.PLAIN
        and container_base(kind) is None
        and type not in mro(kind)
        and not is_leakscopes(kind)
    )


def _add_link(gain: Gain, native: NativeGraph, at: Ints, measure: Measure) -> None:
    """Add the new objects; a sample, measured without what they link to, stands for all."""
    more = len(at) - gain.items
    chosen = [native.sweep.objects[k] for k in at[:: max(len(at) // _SAMPLED, 1)].tolist()]
    kind, many = type(chosen[0]), len(chosen)
    measure.add(chosen, but=kind)
    size, counted = measure.taken()
    if gain.earlier is None:
        gain.earlier = size / many * gain.items
    gain.item = type_name(kind)
    gain.bytes += size / many * more
    gain.counted += counted / many * more
    gain.gained += more
    gain.items = len(at)


_MAX_MEASURED = 256
"""Containers measured in one snapshot, those that gained most items. Heuristic."""
_FIRST = 1 << 40
"""Added to the gain of a container that gained before, so that it is measured first."""
_MANY_DICTS, _FEW_ITEMS = 1 << 17, 16
"""Dicts of numbers and strings in a snapshot from which on the short ones are treated as data. Heuristic."""
_WITHOUT_FIRST = (set, collections.deque)
"""Types whose first item changes whenever an item is added or removed."""
_CALLED = (types.FunctionType, types.MethodType, functools.partial)
"""Types of hooks; an object with its own `__call__` is found by its bytes alone."""
_MAX_REPORTED = 32
"""Containers reported by one snapshot, those that gained most bytes. Heuristic."""


@dataclass(frozen=True, slots=True)
class GrownContainer:
    """A container that has grown."""

    index: int
    """Index in the sweep."""
    container: Any
    length: int
    """Current number of references."""


class Gains:
    """The growth of containers over the snapshots of one process."""

    __slots__ = ("_grown", "_lengths", "_of", "linked")

    def __init__(self) -> None:
        self.linked = LinkedTypes()
        self._lengths = Lengths()
        self._of: dict[int, Gain] = {}
        """By the container's address."""
        self._grown: set[int] = set()
        """Addresses of the untracked dicts that have grown."""

    def growing(self, heap: Sweep, is_container: NDArray[np.bool_]) -> Ints:
        """Indexes of the containers that gained most in this snapshot or before; records all.

        `is_container` marks the containers among the tracked objects of the sweep.
        """
        last = self._lengths.last
        at = heap.address_book.find(last.addresses).astype(np.int64)
        there = np.flatnonzero((at >= 0) & is_container[at])
        grown = self._most_gained(last.at(there), _columns(heap, at[there]))
        containers = np.flatnonzero(is_container)
        self._lengths.note(_columns(heap, containers[kept_lengths(heap.lengths[containers])]))
        return at[there][grown]

    def growing_dicts(self, dicts: UntrackedDicts) -> Ints:
        """Positions of the dicts that have grown among those that hold only untracked objects and are untracked too."""
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
        """Positions of the containers that gained most, and of those that gained in earlier snapshots."""
        more = gained(before, now)
        known = np.isin(now.addresses, np.fromiter(self._of, np.int64, len(self._of)))
        grown = np.flatnonzero((more > 0) | (known & (more == 0)))
        rank = more[grown] + np.where(known[grown], _FIRST, 0)
        return grown[np.argsort(-rank, kind="stable")[:_MAX_MEASURED]]

    def has_grown(self, untracked: dict[Any, Any]) -> bool:
        """Whether an untracked dict was found to have grown in this snapshot."""
        return id(untracked) in self._grown

    def take_growth(self, grown: Sequence[GrownContainer], measure: Measure) -> list[tuple[int, Gain]]:
        """Yield (index, growth) of the containers that gained most bytes; ends the snapshot."""
        gains: dict[int, tuple[int, Gain]] = {}
        news = sorted(((new, self._before(new)) for new in grown), key=_items_gained, reverse=True)
        for new, gain in news[:_MAX_MEASURED]:
            if not measure.is_over:
                _add(gain, new.container, measure)
                gains[id(new.container)] = new.index, gain
        self._of = {address: gain for address, (_, gain) in gains.items()}
        self._lengths.end_snapshot()
        self._grown.clear()
        largest = sorted(gains.values(), key=lambda numbered: (-numbered[1].is_of_hooks, -numbered[1].bytes))[
            :_MAX_REPORTED
        ]
        return [(index, gain) for index, gain in largest if gain.bytes >= LARGE or gain.is_of_hooks]

    def _before(self, new: GrownContainer) -> Gain:
        """What it had gained at the last snapshot."""
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


def _items_gained(new: tuple[GrownContainer, Gain]) -> int:
    container = new[0].container
    return int(container_base(type(container)).__len__(container)) - new[1].items


def _add(gain: Gain, container: Any, measure: Measure) -> None:
    """Add what the container has gained; a measured sample of the newest items stands for all."""
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
    """Whether a dict item is a hook as in `_forward_hooks`: the number of a handle, and a callable."""
    return len(item) > 1 and type(item[0]) is int and type(item[1]) in _CALLED


def _measured(some: list[Item], count: int, measure: Measure) -> tuple[float, float]:
    """Return (bytes, those in malloc's count) of `count` items from a sample, and empty the list."""
    times, parts = count / len(some) if some else 0.0, [part for item in some for part in item]
    some.clear()
    measure.add(parts)
    size, counted = measure.taken()
    return size * times, counted * times


_NAMED = (RootKind.MODULE, RootKind.FRAME, RootKind.CALLBACK, RootKind.THREAD, RootKind.NATIVE)
"""Roots of the program: an object without one is held by leakscope's own objects only."""


def gaining_containers(native: NativeGraph, gains: Gains, own: Iterable[int]) -> dict[int, Gain]:
    """Index of each container that gained most, with its growth; leakscope's `own` are excluded.

    Ends the snapshot for the growth of containers.
    """
    sweep = native.sweep
    found = gains.growing(sweep, (native.flags & GAINING > 0)[sweep.type_index[: sweep.tracked]])
    lengths = dict(zip(found.tolist(), sweep.lengths[found].tolist(), strict=True))
    untracked = np.flatnonzero(sweep.type_list[sweep.type_index[sweep.tracked :]] == id(dict)) + sweep.tracked
    lengths |= {k: len(sweep.objects[k]) for k in untracked.tolist() if gains.has_grown(sweep.objects[k])}
    ours = set(_below(native, own).tolist()) if lengths else set()
    grown = [GrownContainer(k, sweep.objects[k], length) for k, length in lengths.items() if k not in ours]
    measure = Measure(native.types)
    return {**dict(gains.take_growth(grown, measure)), **dict(gains.linked.take_growth(native, measure))}


def _below(native: NativeGraph, own: Iterable[int]) -> Ints:
    """Indexes of leakscope's own objects and of the containers in them."""
    sweep, tops = native.sweep, set(own)
    below = [held for holder, held in zip(native.extra.holder, native.extra.held, strict=True) if holder in tops]
    is_followed = (native.flags & (GAINING | OURS) > 0) | (sweep.type_list == id(tuple))
    caches = sweep.type_list == id(LRU_CACHE)
    ours = np.zeros(len(sweep.objects), dtype=bool)
    level = np.unique(np.array([*tops, *below], dtype=np.int64))
    while len(level):
        kinds = sweep.type_index[level]
        of_ours = [k for k in level[caches[kinds]].tolist() if _caches_ours(sweep.objects[k])]
        level = np.append(level[is_followed[kinds]], np.array(of_ours, dtype=np.int64))
        ours[level] = True
        held = _held_by(native, level)
        level = np.unique(held[~ours[held]])
    return np.flatnonzero(ours)


def _held_by(native: NativeGraph, holders: Ints) -> Ints:
    """Referents of some objects, according to the sweep."""
    sweep = native.sweep
    tracked = holders[holders < sweep.tracked]
    places = in_rows(sweep.starts[tracked], sweep.starts[tracked + 1] - sweep.starts[tracked])
    others = np.flatnonzero(np.isin(sweep.holder[sweep.starts[-1] :], holders)) + sweep.starts[-1]
    held: Ints = sweep.held[np.append(places, others)].astype(np.int64)
    return held


def _caches_ours(cache: Any) -> bool:
    """Whether an `lru_cache` keeps results of a function of leakscope."""
    return type(cache.__wrapped__) is FunctionType and is_of_leakscope(cache.__wrapped__.__module__)


def _row(place: int, gain: Gain) -> GainingContainer:
    return GainingContainer(
        container=place,
        items=gain.items,
        gained=gain.gained,
        bytes=round(gain.bytes),
        counted_bytes=round(gain.counted),
        item=gain.item,
        earlier_bytes=round(gain.earlier or 0),
    )


def rows_of(gained: Mapping[int, Gain], places: Mapping[int, int], graph: HeapGraph) -> tuple[GainingContainer, ...]:
    """The rows for those that have a name in the program; `places` are their indexes in the graph."""
    if not gained:
        return ()
    starts = np.flatnonzero(np.isin(graph.root, [ROOTS.index(root) for root in _NAMED]))
    held = reachable(len(graph), graph.holder, graph.held, starts)
    return tuple(
        _row(places[k], gain)
        for k, gain in gained.items()
        if k in places and held[places[k]] and graph.root[places[k]] != ROOTS.index(RootKind.NATIVE)
    )
