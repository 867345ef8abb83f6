"""Which containers of the heap keep gaining objects that are no tensors?"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

import numpy as np

from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.objects.gain import Gain
from leakscope.capture.heap.objects.gains import Gains, Grown
from leakscope.capture.heap.objects.sizes import Measure
from leakscope.capture.heap.python.referents import LRU_CACHE
from leakscope.capture.heap.raw_types import container_base, is_leakscopes, is_of_leakscope
from leakscope.graph.model import ROOTS, HeapGraph, RootKind
from leakscope.graph.reach import reachable
from leakscope.record.rows.objects import GainingContainer

_NAMED = (RootKind.MODULE, RootKind.FRAME, RootKind.THREAD, RootKind.NATIVE)
"""Roots of the program's: what has none of them hangs on leakscope's own objects."""


def gaining_containers(native: NativeReferences, gains: Gains, own: Iterable[int]) -> dict[int, Gain]:
    """Index of each container that has gained most, with what it has; leakscope's `own` are left out.

    It is the end of the look for the gains.
    """
    sweep = native.sweep
    tracked = native.containers[native.containers < sweep.tracked]
    found = gains.growing(sweep, tracked)
    lengths = dict(zip(found.tolist(), sweep.lengths[found].tolist(), strict=True))
    untracked = np.flatnonzero(sweep.types[sweep.tracked :] == id(dict)) + sweep.tracked
    lengths |= {k: len(sweep.objects[k]) for k in untracked.tolist() if gains.has_grown(sweep.objects[k])}
    ours = _below(native, own) if lengths else set()
    grown = [Grown(k, sweep.objects[k], length) for k, length in lengths.items() if id(sweep.objects[k]) not in ours]
    measure = Measure(native.types)
    return {**dict(gains.tell(grown, measure)), **dict(gains.linked.tell(native, measure))}


def _below(native: NativeReferences, own: Iterable[int]) -> set[int]:
    """Addresses of leakscope's own objects and of the containers in them."""
    objects, extra = native.sweep.objects, native.extra
    tops = set(own)
    waiting = [objects[k] for k in tops]
    waiting += [objects[held] for holder, held in zip(extra.holder, extra.held, strict=True) if holder in tops]
    ours: set[int] = set()
    while waiting:
        obj = waiting.pop()
        kind = type(obj)
        if id(obj) not in ours and (_is_container(kind) or is_leakscopes(kind) or _caches_ours(obj, kind)):
            ours.add(id(obj))
            waiting += gc.get_referents(obj)
    return ours


def _is_container(kind: type) -> bool:
    return kind is tuple or container_base(kind) is not None


def _caches_ours(obj: Any, kind: type) -> bool:
    """Whether an object keeps the results of a function of leakscope's: an `lru_cache`, which is no type of ours."""
    return kind is LRU_CACHE and type(obj.__wrapped__) is FunctionType and is_of_leakscope(obj.__wrapped__.__module__)


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
