"""Which Python objects of the parent's do forked workers copy as they read them?

To read an object is to write its reference count: the page that it lies on is the worker's own from then on
(pytorch/pytorch#13246).
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakscope.capture.heap.native.raw_memory import bytes_at
from leakscope.capture.heap.objects.items import item_text, oldest_items
from leakscope.capture.heap.raw_types import container_base, is_leakscopes, made_in_python, type_dict, type_name
from leakscope.capture.workers.memory import PAGE, Pages
from leakscope.capture.workers.named import LRU_CACHE, Found, containers_of
from leakscope.originals import gc
from leakscope.record.rows.workers import SharedObjects

LEAST_OBJECTS = 10_000
"""Objects below which a container is no matter of memory, chosen."""
_LEAST_BYTES = 1 << 20
"""The same of the bytes of its pages."""
_MOST_OBJECTS = 6_000_000
"""Objects of one container that are asked where they lie, chosen: about half a second."""
_DEEPEST = 4
"""Containers in each other that are followed, chosen."""
_MOST_TOLD = 4
"""Containers that are told, the largest, chosen."""
_HEAD = 24
"""Bytes of a list ahead of the address of its items (CPython Include/cpython/listobject.h)."""
_WORD = 8
_CONTAINERS = (list, dict, tuple, set, frozenset, deque)


@dataclass(frozen=True, eq=False)
class Shared:
    """A large container, and the pages that its objects lie on."""

    told: SharedObjects
    pages: Pages


class SharedContainers:
    """Those of the datasets of this process; each is gone through once, ahead of the first fork."""

    def __init__(self) -> None:
        self.found: tuple[Shared, ...] = ()
        """Of the dataset that was asked for last."""
        self._known: dict[tuple[int, int], Shared | None] = {}
        """By the container's address and length."""

    def find(self, dataset: Any, modules: Sequence[str]) -> None:
        """Find the large containers that are reached from a dataset, or stand in the user's `modules`."""
        shared = [self._shared(found) for found in containers_of(dataset, modules)]
        largest = sorted((each for each in shared if each is not None), key=lambda each: -each.told.bytes)
        self.found = tuple(largest[:_MOST_TOLD])

    def _shared(self, found: Found) -> Shared | None:
        kind = type(found.obj)
        base = tuple if kind is tuple else container_base(kind)
        if kind is LRU_CACHE or base is None or "[" in found.place.written:  # what is inside is told with what it is in
            return None
        key = id(found.obj), int(base.__len__(found.obj))
        if key not in self._known:
            self._known[key] = _of(found, base, key[1])
        return self._known[key]


def _of(found: Found, base: Any, items: int) -> Shared | None:
    addresses, count = _addresses(found.obj, base)
    pages = _pages(addresses)
    if count < LEAST_OBJECTS or len(pages) * PAGE < _LEAST_BYTES:
        return None
    some = oldest_items(found.obj, base, items) if base is not tuple else [(item,) for item in found.obj[:8]]
    told = SharedObjects(
        written=found.place.written,
        owner=found.place.owner,
        where=found.place.line(),
        type=type_name(type(found.obj)),
        item=item_text(some),
        items=items,
        objects=count,
        bytes=len(pages) * PAGE,
    )
    return Shared(told, pages)


def _addresses(container: Any, base: Any) -> tuple[list[Pages], int]:
    """(addresses of the objects in a container and in those in it, how many)."""
    if base is list and _is_flat(container):
        found = _items_at(container)
        return [found], len(found)
    addresses: list[Pages] = []
    count, level = 0, [container]
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        level = gc.get_referents(*level)
        count += len(level)
        addresses.append(np.fromiter(map(id, level), np.int64, len(level)))
        inner = [kind for kind in set(map(type, level)) if _goes_on(kind)]
        if not inner or count > _MOST_OBJECTS:
            break
        level = [obj for obj in level if type(obj) in inner and id(obj) not in seen]
        seen.update(map(id, level))
    return addresses, count


def _is_flat(items: Any) -> bool:
    """Whether the first items of a list hold nothing: then no object needs to be touched."""
    return not any(_goes_on(type(item)) for item in list.__getitem__(items, slice(0, 8)))


def _items_at(items: Any) -> Pages:
    """Addresses of the items of a list, read where the list has them."""
    length = list.__len__(items)
    place = ctypes.c_void_p.from_address(id(items) + _HEAD).value
    if not length or not place:
        return np.empty(0, np.int64)
    # another thread may have made the list move since: then some pages are told wrongly, and nothing crashes
    data = bytes_at(place, length * _WORD)
    return np.frombuffer(data, dtype=np.int64) if len(data) == length * _WORD else np.empty(0, np.int64)


def _goes_on(kind: type) -> bool:
    """Whether what an object of this type holds is of the container as well: containers and records."""
    if any(kind is each for each in _CONTAINERS):
        return True
    module = type_dict(kind).get("__module__")
    of_torch = type(module) is str and module.partition(".")[0] in ("torch", "numpy")
    return made_in_python(kind) and not issubclass(kind, type) and not is_leakscopes(kind) and not of_torch


def _pages(addresses: Sequence[Pages]) -> Pages:
    """The pages that objects at these addresses lie on, each once."""
    found = [np.unique(each // PAGE) for each in addresses if len(each)]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
