"""Which objects stand on a path to tensor memory or an array's, and where do the paths begin?"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.arrays import arrays_of
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.python.classes import globals_of_spawned_main, module_dict
from leakscope.capture.heap.python.gc_heap import Sweep
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.heap.refcounts import RefcountTable, References, together
from leakscope.capture.process.pause import go_on
from leakscope.graph.model import Ints
from leakscope.graph.reach import reachable

MOST_LEVELS = 100
"""References that objects are away from memory up to which only they are visited, chosen; further up the whole heap."""


@dataclass(frozen=True)
class PrunedHeap:
    """The pruned heap: indexes of objects kept in ascending order, and the references among them, by holder."""

    objects: Ints
    references: References
    modules: dict[int, str]
    """Index of a module's namespace to the module's name."""
    arrays: dict[int, int]
    """Index of each array, bytes or BytesIO with memory of its own to how much that is."""
    roots: NDArray[np.bool_]
    """Of all objects those that live whatever holds them: module namespaces, running frames, leakscope's own."""


def module_namespaces(native: NativeReferences) -> dict[int, str]:
    """Index of every loaded module's `__dict__`, with its name; no module's `__getattr__` is asked."""
    loaded = [
        (name, id(module_dict(module)))
        for name, module in list(sys.modules.items())
        if type(name) is str and (type(module) is ModuleType or ModuleType in mro(type(module)))
    ]
    spawned = globals_of_spawned_main()
    if spawned is not None:
        loaded.append(("__main__", id(spawned)))
    names: dict[int, str] = {}
    for (name, _), index in zip(loaded, native.places([address for _, address in loaded]), strict=True):
        if index >= 0:
            names.setdefault(index, name)
    return names


def prune(
    native: NativeReferences,
    refcounts: RefcountTable,
    frames: dict[int, str],
    own: set[int],
    gaining: Collection[int] = (),
) -> PrunedHeap:
    """Keep the ancestors of storages, of arrays that own memory and of containers that are `gaining` other objects.

    Module namespaces and running frames have none. `own` are indexes of leakscope's own objects, which are left out.
    An instance's reference to its class is no path to memory that the class holds: every instance would be on it.
    """
    modules = module_namespaces(native)
    stops = np.zeros(refcounts.count, dtype=bool)
    stops[list(modules) + list(frames)] = True
    out = np.zeros(refcounts.count, dtype=bool)
    out[list(own)] = True
    arrays = arrays_of(native, refcounts)
    memory = np.append(np.arange(refcounts.objects, refcounts.count), np.asarray([*arrays, *gaining], dtype=np.int64))
    objects, references = ancestors(native.sweep, refcounts, memory, stops, out)
    return PrunedHeap(objects, references, modules, arrays, stops | out)


def ancestors(
    heap: Sweep, refcounts: RefcountTable, memory: Ints, stops: NDArray[np.bool_], out: NDArray[np.bool_]
) -> tuple[Ints, References]:
    """All that leads to memory but what is `out`, in ascending order, and the references of the paths, by holder.

    Paths begin at what `stops`. From level to level upwards, for as long as there are few levels.
    """
    kept = np.zeros(refcounts.count, dtype=bool)
    parts = [_paths(heap, refcounts, memory[:0], stops, out)]
    level = np.unique(memory[~out[memory]])
    for _ in range(MOST_LEVELS):
        if len(level) == 0:
            break
        go_on()
        kept[level] = True
        parts.append(_paths(heap, refcounts, level, stops, out))
        holders = parts[-1].holder
        level = np.unique(holders[~kept[holders]])
    else:
        everywhere = _paths(heap, refcounts, np.arange(refcounts.count), stops, out)
        kept |= reachable(refcounts.count, everywhere.held, everywhere.holder, np.append(np.flatnonzero(kept), level))
        parts = [everywhere.at(kept[everywhere.held])]
    references = together(parts)
    return np.flatnonzero(kept), references.at(np.lexsort((references.held, references.holder)))


def _paths(
    heap: Sweep, refcounts: RefcountTable, held: Ints, stops: NDArray[np.bool_], out: NDArray[np.bool_]
) -> References:
    """The references to some objects that are part of paths."""
    references = refcounts.into(held[~stops[held] & ~out[held]])
    usable = ~out[references.holder]
    usable &= ~np.isin(references.holder, refcounts.idle)
    objects = np.flatnonzero(references.held < refcounts.objects)
    kinds = heap.type_index[references.holder[objects]]
    usable[objects[heap.addresses[references.held[objects]] == heap.type_list[kinds]]] = False
    return references.at(usable)
