"""Which containers of the heap keep gaining objects that are no tensors?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

import numpy as np

from leakscope.capture.heap.native.known_types import GAINING, OURS
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.objects.gain import Gain
from leakscope.capture.heap.objects.gains import Gains, Grown
from leakscope.capture.heap.objects.sizes import Measure
from leakscope.capture.heap.python.referents import LRU_CACHE
from leakscope.capture.heap.raw_types import is_of_leakscope
from leakscope.graph.held_by import in_rows
from leakscope.graph.model import ROOTS, HeapGraph, Ints, RootKind
from leakscope.graph.reach import reachable
from leakscope.record.rows.objects import GainingContainer

_NAMED = (RootKind.MODULE, RootKind.FRAME, RootKind.CALLBACK, RootKind.THREAD, RootKind.NATIVE)
"""Roots of the program's: what has none of them hangs on leakscope's own objects."""


def gaining_containers(native: NativeReferences, gains: Gains, own: Iterable[int]) -> dict[int, Gain]:
    """Index of each container that has gained most, with what it has; leakscope's `own` are left out.

    It is the end of the look for the gains.
    """
    sweep = native.sweep
    found = gains.growing(sweep, (native.verdicts & GAINING > 0)[sweep.type_index[: sweep.tracked]])
    lengths = dict(zip(found.tolist(), sweep.lengths[found].tolist(), strict=True))
    untracked = np.flatnonzero(sweep.type_list[sweep.type_index[sweep.tracked :]] == id(dict)) + sweep.tracked
    lengths |= {k: len(sweep.objects[k]) for k in untracked.tolist() if gains.has_grown(sweep.objects[k])}
    ours = set(_below(native, own).tolist()) if lengths else set()
    grown = [Grown(k, sweep.objects[k], length) for k, length in lengths.items() if k not in ours]
    measure = Measure(native.types)
    return {**dict(gains.tell(grown, measure)), **dict(gains.linked.tell(native, measure))}


def _below(native: NativeReferences, own: Iterable[int]) -> Ints:
    """Indexes of leakscope's own objects and of the containers in them."""
    sweep, extra = native.sweep, native.extra
    tops = set(own)
    below = [held for holder, held in zip(extra.holder, extra.held, strict=True) if holder in tops]
    goes_on = (native.verdicts & (GAINING | OURS) > 0) | (sweep.type_list == id(tuple))
    caches = sweep.type_list == id(LRU_CACHE)
    ours = np.zeros(len(sweep.objects), dtype=bool)
    level = np.unique(np.array([*tops, *below], dtype=np.int64))
    while len(level):
        kinds = sweep.type_index[level]
        of_ours = [k for k in level[caches[kinds]].tolist() if _caches_ours(sweep.objects[k])]
        level = np.append(level[goes_on[kinds]], np.array(of_ours, dtype=np.int64))
        ours[level] = True
        held = _held_by(native, level)
        level = np.unique(held[~ours[held]])
    return np.flatnonzero(ours)


def _held_by(native: NativeReferences, holders: Ints) -> Ints:
    """What some objects hold, as the sweep has it."""
    sweep = native.sweep
    tracked = holders[holders < sweep.tracked]
    places = in_rows(sweep.starts[tracked], sweep.starts[tracked + 1] - sweep.starts[tracked])
    others = np.flatnonzero(np.isin(sweep.holder[sweep.starts[-1] :], holders)) + sweep.starts[-1]
    held: Ints = sweep.held[np.append(places, others)].astype(np.int64)
    return held


def _caches_ours(cache: Any) -> bool:
    """Whether an `lru_cache`, which is no type of ours, keeps the results of a function of leakscope's."""
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
    """What a look says of them, those that the program has a name for; `places` are their indexes in the graph."""
    if not gained:
        return ()
    starts = np.flatnonzero(np.isin(graph.root, [ROOTS.index(root) for root in _NAMED]))
    held = reachable(len(graph), graph.holder, graph.held, starts)
    return tuple(
        _row(places[k], gain)
        for k, gain in gained.items()
        if k in places and held[places[k]] and graph.root[places[k]] != ROOTS.index(RootKind.NATIVE)
    )
