"""Which objects stand on a way to tensor memory or an array's, and where do the ways begin?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.arrays import arrays_of
from leakscope.capture.heap.describe import module_names
from leakscope.capture.heap.native_references import STORAGE_OBJECT, Explorer
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.heap.refcounts import Account
from leakscope.graph.reach import reachable

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Kept:
    """The pruned heap: indexes of objects kept, and which references among them."""

    objects: Ints
    references: Ints
    """Indexes into the account's columns."""
    modules: dict[int, str]
    """Index of a module's namespace to the module's name."""
    arrays: dict[int, int]
    """Index of each array, bytes or BytesIO with memory of its own to how much that is."""


def module_namespaces(found: Explorer) -> dict[int, str]:
    """Index of every loaded module's `__dict__`, with its name; no module's `__getattr__` is asked."""
    names: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if ModuleType in mro(type(module)):
            index = found.find(id(module_names(module)))
            if index >= 0 and type(name) is str:
                names.setdefault(index, name)
    return names


def prune(found: Explorer, books: Account, frames: dict[int, str], own: set[int]) -> Kept:
    """Keep the ancestors of all storages and of arrays that own memory, stopping at module namespaces and running frames.

    `own` are indexes of leakscope's own objects, which are left out. An instance's reference to its class is
    no way to memory that the class holds: every instance would be on it.
    """
    modules = module_namespaces(found)
    stops = np.zeros(books.count, dtype=bool)
    stops[list(modules) + list(frames)] = True
    out = np.zeros(books.count, dtype=bool)
    out[list(own)] = True
    role = np.append(found.role, np.zeros(books.count - books.objects, np.int8))
    addresses = np.append(found.sweep.addresses, np.zeros(books.count - books.objects, np.int64))
    types = np.append(found.sweep.types, np.zeros(books.count - books.objects, np.int64))
    to_own_class = addresses[books.held] == types[books.holder]
    # A storage's Python object that only C++ keeps holds nothing: it goes with the storage.
    python_in = np.bincount(books.held, weights=books.python, minlength=books.count)
    idle = (role == STORAGE_OBJECT) & (python_in == 0) & (books.unexplained == 0)
    usable = ~stops[books.held] & ~out[books.holder] & ~out[books.held] & ~to_own_class & ~idle[books.holder]
    places = np.flatnonzero(usable)
    arrays = arrays_of(found, books)
    memory = np.append(np.arange(books.objects, books.count), np.asarray(list(arrays), dtype=np.int64))
    kept = reachable(books.count, books.held[places], books.holder[places], memory)
    kept &= ~out
    places = places[kept[books.holder[places]] & kept[books.held[places]]]
    return Kept(np.flatnonzero(kept), places, modules, arrays)
