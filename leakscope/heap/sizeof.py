"""Sizes of Python objects, containers and images."""

from __future__ import annotations

import collections
import sys
import types
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from leakscope.heap._sweep_fallback import LARGE
from leakscope.heap.autograd import Role, Types
from leakscope.heap.referents import items_of
from leakscope.originals import gc, os
from leakscope.process.raw_types import TypeCache, container_base, has_gc, made_in_python, mro, type_dict, type_name

_CORE = "ImagingCore"
"""Type name of Pillow's C image, the `.im` of a PIL image (Pillow src/_imaging.c)."""
_ONE_BYTE = ("1", "L", "P")
"""Modes with one byte per pixel (Pillow src/libImaging/Storage.c)."""
_TWO_BYTES = "I;16"
"""Prefixes of modes with two bytes per pixel; all others take four."""


def picture_bytes(obj: Any, kind: type) -> int:
    """Bytes of the pixels of a PIL image; 0 for anything else."""
    if type_name(kind) != _CORE:
        return 0
    names = type_dict(kind)
    try:
        mode, (width, height) = names["mode"].__get__(obj), names["size"].__get__(obj)
    except (KeyError, TypeError, ValueError, AttributeError):  # another type of that name
        return 0
    pixel = 1 if mode in _ONE_BYTE else 2 if str(mode).startswith(_TWO_BYTES) else 4
    return int(width) * int(height) * pixel


_SAMPLED = 8
"""Newest items sampled. Heuristic."""
_ALL_OF = 32
"""Number of objects up to which all are examined. Heuristic."""
_SOME_OF = 16
"""Sample size above that. Heuristic."""
_MAX_NESTING = 2
"""Nesting of containers that a description names. Heuristic."""
_NAMED = 3
"""Most frequent item types that a description of a container names."""

Item = tuple[Any, ...]
"""An item of a container; for a dict the key and the value."""


def newest_items(container: Any, base: Any, gained: int) -> list[Item]:
    """Some of the items added last; for a set, which has no order, any."""
    many = min(gained, _SAMPLED)
    if base is list:
        last = list.__len__(container) - 1
        return [(item,) for k in range(many) for item in _at(container, last - k * gained // many)]
    if base is dict:
        return list(islice(reversed(dict.items(container)), many))
    if base is collections.deque:
        return [(item,) for item in list(islice(collections.deque.__reversed__(container), many))]
    return [(item,) for item in list(islice(set.__iter__(container), many))]


def _at(items: Any, place: int) -> list[Any]:
    """The list item at a position; empty if another thread has removed it."""
    return list.__getitem__(items, slice(max(place, 0), max(place, 0) + 1))


def oldest_items(container: Any, base: Any, count: int) -> list[Item]:
    """Some of the first `count` items; for a set, which has no order, any."""
    many = min(count, _SAMPLED)
    if base is list:
        return [(item,) for k in range(many) for item in _at(container, k * count // many)]
    if base is dict:
        return list(islice(dict.items(container), many))
    return [(item,) for item in list(islice(base.__iter__(container), many))]


def some_items(held: Sequence[Any]) -> Sequence[Any]:
    """All items or, if there are very many, an evenly spaced sample."""
    return held if len(held) <= _ALL_OF else held[:: len(held) // _SOME_OF]


def item_text(items: Sequence[Item]) -> str:
    """The type of most items: `str`, `dict of str and float`, `list of 512 float`."""
    texts = [_text(item[-1], _MAX_NESTING) if _is_informative(item[-1]) else _text(item[0], 0) for item in items]
    return Counter(texts).most_common(1)[0][0] if texts else ""


def _is_informative(value: Any) -> bool:
    """Whether a value carries information beyond its key; a flag does not."""
    return value is not None and type(value) is not bool


def _text(obj: Any, deep: int) -> str:
    kind = type(obj)
    name = type_name(kind)
    base = tuple if kind is tuple else container_base(kind)
    if base is None or deep == 0 or (kind is not base and made_in_python(kind)):
        return name
    values = dict.values(obj) if base is dict else items_of(obj) if base is tuple else base.__iter__(obj)
    inner = Counter(_text(value, deep - 1) for value in list(islice(values, _ALL_OF)))
    if not inner:
        return name
    words = [word for word, _ in inner.most_common(_NAMED)]
    count = base.__len__(obj)
    many = f"{count:,} " if len(words) == 1 and base is list and count > _NAMED else ""
    return f"{name} of {many}{_listed(words)}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


_SHARED_FROM = 4
"""References from which on an object counts as shared (an interned key, a model, a parent). Heuristic."""
_GC_HEAD = 16
"""Bytes before an object that gc tracks (CPython Include/internal/pycore_gc.h)."""
_VALUE, _VALUES = 8, 16
"""Bytes of an inline attribute of an instance, and before the first (CPython Objects/dictobject.c)."""
_MAX_SMALL = 512
"""Maximum bytes of a block served from Python's arenas, which malloc's count does not include (obmalloc.c)."""
_MAX_OF_ONE = 250
"""Maximum objects examined for one item. Heuristic."""
_MAX_PER_SNAPSHOT = 20_000
"""Maximum objects measured by one snapshot. Heuristic: about 40 ms."""

_ATOMS = (str, bytes, bytearray, int, float, complex)
"""Types without referents."""
_SIZED = (*_ATOMS, list, dict, tuple, set, frozenset, collections.deque, collections.OrderedDict)
"""Builtin types whose `__sizeof__` is called; static in some versions of CPython and not in others."""
_NOBODYS = (
    type, types.ModuleType, types.CodeType, types.FrameType, types.GeneratorType, types.CoroutineType,
    types.TracebackType, types.BuiltinFunctionType, type(None), bool, type(...), type(NotImplemented),
)  # fmt: skip
"""Types that are alive for reasons other than their container, or reported by other rules."""
_OF_FUNCTION = ("__closure__", "__defaults__", "__kwdefaults__")
_FUNCTION = types.FunctionType.__dict__
_ARRAY: Any = np.ndarray.__dict__


def _arenas_serve() -> int:
    """Maximum block size served by arenas; 0 if Python was configured to use malloc for all."""
    return 0 if os.environ.get("PYTHONMALLOC", "").startswith("malloc") else _MAX_SMALL


@dataclass
class Measure:
    """Measures objects for one snapshot, each once."""

    known: Types
    _bytes: float = 0.0
    _counted: float = 0.0
    _arenas: int = field(default_factory=_arenas_serve)
    _seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        role = self.known.role  # not `self`: the cycle would wait for gc
        self._has_bytes = TypeCache(lambda kind: role(kind) is Role.PLAIN and not _is_nobodys(kind)).of

    def taken(self) -> tuple[float, float]:
        """Return and reset (bytes, those in blocks that Python allocates by malloc) added since the last call."""
        sizes, self._bytes, self._counted = (self._bytes, self._counted), 0.0, 0.0
        return sizes

    @property
    def is_over(self) -> bool:
        """Whether the snapshot has reached its measuring limit."""
        return len(self._seen) >= _MAX_PER_SNAPSHOT

    def add(self, items: list[Any], but: type | None = None) -> None:
        """Add the bytes of these objects, except tensors and arrays of the heap graph, and empty the list.

        Further objects of the type `but` are not followed. Long lists are sampled.
        """
        waiting = collections.deque((item, 1.0) for item in items)
        items.clear()
        for _ in range(_MAX_OF_ONE * len(waiting)):
            if not waiting:
                break
            obj, times = waiting.popleft()
            kind = type(obj)
            if id(obj) in self._seen or not self._has_bytes(kind) or _is_shared(obj):
                continue
            self._seen.add(id(obj))
            size, block = _size(obj, kind)
            self.add_block(size * times, block)
            held = [inner for inner in _held_by(obj, kind) if type(inner) is not but]
            if held:
                chosen = some_items(held)
                waiting.extend((inner, times * len(held) / len(chosen)) for inner in chosen)
                del chosen
            del obj, held

    def add_block(self, size: float, block: float) -> None:
        """Add bytes, with the size of the largest block among them."""
        self._bytes += size
        if block > self._arenas:
            self._counted += size


def _is_nobodys(kind: type) -> bool:
    bases = mro(kind)
    return any(nobody in bases for nobody in _NOBODYS)


def size_of(obj: Any, kind: type) -> int:
    """Bytes of an object alone; calls no `__sizeof__` of the user."""
    for base in mro(kind):
        if any(base is sized for sized in _SIZED) or not made_in_python(base):
            sizeof = type_dict(base).get("__sizeof__")
            if sizeof is not None:
                return int(sizeof(obj)) + (_GC_HEAD if has_gc(kind) else 0) + _inline_values(obj, kind)
    return 0


def _is_shared(obj: Any) -> bool:
    """Whether it has so many referrers that it does not belong to the container."""
    ours = _OURS + gc.is_tracked(obj)  # the snapshot's list has everything that gc tracks
    return _references(obj) - ours >= _SHARED_FROM


def _references(obj: Any) -> int:
    return sys.getrefcount(obj)


def _measure_ours() -> int:
    def shown(obj: Any) -> int:
        return _references(obj)

    probe = object()
    return shown(probe)


_OURS = _measure_ours()
"""What `_references` returns in `_is_shared` for an object that only the name in `Measure.add` holds."""


def _size(obj: Any, kind: type) -> tuple[int, int]:
    """Return (bytes, bytes of the largest block) of the object alone; zero for arrays of the heap graph."""
    if np.ndarray in mro(kind):
        own = _ARRAY["flags"].__get__(obj).owndata
        data = int(_ARRAY["nbytes"].__get__(obj)) if own else 0
        if data >= LARGE and not _ARRAY["dtype"].__get__(obj).hasobject:
            data = 0
        return int(object.__sizeof__(obj)) + data, data
    pixels = picture_bytes(obj, kind)
    size = size_of(obj, kind) + pixels
    if size >= LARGE and (kind is bytes or kind is bytearray):
        return 0, 0
    return size, size


def _held_by(obj: Any, kind: type) -> list[Any]:
    """Referents of an object, from CPython's traversal."""
    if any(kind is atom for atom in _ATOMS):
        return []
    if kind is types.FunctionType:
        return [held for name in _OF_FUNCTION if (held := _FUNCTION[name].__get__(obj)) is not None]
    if np.ndarray in mro(kind):
        if not _ARRAY["dtype"].__get__(obj).hasobject:
            return []
        return list(np.ndarray.view(obj, np.ndarray).ravel().tolist())
    return gc.get_referents(obj)


def _inline_values(obj: Any, kind: type) -> int:
    """Bytes of the inline attributes of an instance; a block of their own up to Python 3.12."""
    if not made_in_python(kind) or not any("__dict__" in type_dict(base) for base in mro(kind)):
        return 0
    held = gc.get_referents(obj)
    return 0 if any(type(inner) is dict for inner in held) else _VALUES + _VALUE * (len(held) - 1)
