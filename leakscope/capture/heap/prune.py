"""Which objects stand on a path to tensor memory or an array's, and where do the paths begin?"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from leakscope.capture.heap.arrays import arrays_of
from leakscope.capture.heap.native.autograd import Role
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.python.classes import module_dict
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.heap.refcounts import RefcountTable
from leakscope.graph.model import Ints
from leakscope.graph.reach import reachable


@dataclass(frozen=True)
class PrunedHeap:
    """The pruned heap: indexes of objects kept, and which references among them."""

    objects: Ints
    references: Ints
    """Indexes into the columns of the RefcountTable."""
    modules: dict[int, str]
    """Index of a module's namespace to the module's name."""
    arrays: dict[int, int]
    """Index of each array, bytes or BytesIO with memory of its own to how much that is."""


def module_namespaces(native: NativeReferences) -> dict[int, str]:
    """Index of every loaded module's `__dict__`, with its name; no module's `__getattr__` is asked."""
    names: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if ModuleType in mro(type(module)):
            index = native.find(id(module_dict(module)))
            if index >= 0 and type(name) is str:
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
    role = np.append(native.role, np.zeros(refcounts.count - refcounts.objects, np.int8))
    addresses = np.append(native.sweep.addresses, np.zeros(refcounts.count - refcounts.objects, np.int64))
    types = np.append(native.sweep.types, np.zeros(refcounts.count - refcounts.objects, np.int64))
    to_own_class = addresses[refcounts.held] == types[refcounts.holder]
    # A storage's Python object that only C++ keeps holds nothing: it goes with the storage.
    python_in = np.bincount(refcounts.held, weights=refcounts.python, minlength=refcounts.count)
    idle = (role == Role.STORAGE) & (python_in == 0) & (refcounts.unexplained == 0)
    usable = (
        ~stops[refcounts.held] & ~out[refcounts.holder] & ~out[refcounts.held] & ~to_own_class & ~idle[refcounts.holder]
    )
    places = np.flatnonzero(usable)
    arrays = arrays_of(native, refcounts)
    memory = np.append(np.arange(refcounts.objects, refcounts.count), np.asarray([*arrays, *gaining], dtype=np.int64))
    kept = reachable(refcounts.count, refcounts.held[places], refcounts.holder[places], memory)
    kept &= ~out
    places = places[kept[refcounts.holder[places]] & kept[refcounts.held[places]]]
    return PrunedHeap(np.flatnonzero(kept), places, modules, arrays)
