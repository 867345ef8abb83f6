"""Types and instances read as C has them, without metaclasses, descriptors or new dicts."""

from __future__ import annotations

import collections
import ctypes
import struct
import sys
import types
from collections.abc import Callable
from itertools import compress, repeat, takewhile
from operator import attrgetter, is_, itemgetter
from typing import Any, Generic, TypeVar

from leakscope.errors import unsupported_python
from leakscope.native import gc_heap
from leakscope.originals import gc

mro_tuple: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""The `__mro__` tuple of a type itself."""
_dict = type.__dict__["__dict__"].__get__
_flags = type.__dict__["__flags__"].__get__
_name = type.__dict__["__name__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_module = type.__dict__["__module__"].__get__
_dictoffset = type.__dict__["__dictoffset__"].__get__
_basicsize = type.__dict__["__basicsize__"].__get__
_itemsize = type.__dict__["__itemsize__"].__get__
_HEAP_TYPE = 1 << 9
_HAVE_GC = 1 << 14
_MANAGED_DICT = 1 << 4
_INLINE_VALUES = 1 << 2
"""Type flags Py_TPFLAGS_HEAPTYPE, HAVE_GC, MANAGED_DICT and, since Python 3.13, INLINE_VALUES (CPython
Include/object.h).
"""

WORD = struct.calcsize("P")
LAYOUT_IS_KNOWN = not unsupported_python() and struct.calcsize("q") == WORD and not hasattr(sys, "gettotalrefcount")
"""Whether the fields of CPython structures are at the expected offsets."""
_TRIES = 3
"""Attempts to read slots by ctypes, each of which fails if another thread empties one meanwhile."""
MISSING = object()
"""Marks an empty slot."""


_CONTAINERS = (list, dict, set, collections.deque)


class Bases(tuple[type, ...]):
    """A set of types compared by identity: `in` on a tuple runs the `__eq__` of a metaclass."""

    __slots__ = ()

    def __contains__(self, kind: object) -> bool:
        return any(base is kind for base in self)


T = TypeVar("T")


class TypeCache(Generic[T]):
    """Answers a question about types once for each, by address: a metaclass may define `__hash__` and `__eq__`.

    Valid while the types live, as during a snapshot.
    """

    __slots__ = ("_answers", "_judge")

    def __init__(self, judge: Callable[[type], T]) -> None:
        self._judge = judge
        self._answers: dict[int, T] = {}

    def of(self, kind: type) -> T:
        """The answer for a type."""
        try:
            return self._answers[id(kind)]
        except KeyError:
            answer = self._answers[id(kind)] = self._judge(kind)
            return answer


def mro(kind: type) -> Bases:
    """The base classes of a type, starting with itself."""
    return Bases(mro_tuple(kind))


def container_base(kind: type) -> Any:
    """The builtin growable container that a type is or derives from, else None."""
    bases = mro(kind)
    return next((base for base in _CONTAINERS if base in bases), None)


def all_keys_are(kind: type, values: Any) -> bool:
    """Whether all keys of a dict are of exactly this type; one C call, since another thread may change it."""
    return all(map(is_, map(type, dict.keys(values)), repeat(kind)))


def is_leakscopes(kind: type) -> bool:
    """Whether a type belongs to leakscope."""
    return is_of_leakscope(_dict(kind).get("__module__"))


def is_of_leakscope(module: object) -> bool:
    """Whether a `__module__` names a module of leakscope."""
    return type(module) is str and module.partition(".")[0] in ("leakscope", "leakscope_cli")


def type_dict(kind: type) -> Any:
    """`kind.__dict__`."""
    return _dict(kind)


def made_in_python(kind: type) -> bool:
    """Whether the type is a heap type, usually from a class statement."""
    return bool(_flags(kind) & _HEAP_TYPE)


def has_gc(kind: type) -> bool:
    """Whether gc can track objects of a type."""
    return bool(_flags(kind) & _HAVE_GC)


def type_name(kind: type) -> str:
    """The `__name__` of a type."""
    return str(_name(kind))


def type_qualname(kind: type) -> str:
    """The `__qualname__` of a type, as `Outer.Inner`."""
    return str(_qualname(kind))


def qualified_name(kind: type) -> str:
    """The `module.QualName` of a type; builtins without module."""
    module = _dict(kind).get("__module__")
    if type(module) is not str and not made_in_python(kind):
        module = _module(kind)
    name = type_qualname(kind)
    return name if module in ("builtins", None) or type(module) is not str else f"{module}.{name}"


def word_at(address: int, offset: int = 0) -> int:
    """Read one machine word of a live object as a number."""
    return int(ctypes.c_size_t.from_address(address + offset * WORD).value)


def slots_at(guard: int, width: int, expected: int, first: int, count: int) -> list[Any] | None:
    """The objects in a row of pointer slots, `MISSING` for an empty one.

    The slots are read in one call of C, so no other thread moves or frees them meanwhile.

    Args:
        guard: Address of memory that can be read, which says whether the slots are valid.
        width: Bytes there, 1 or 8.
        expected: The slots are valid while this number is there.
        first: Address of the first slot.
        count: How many slots.

    Returns:
        None where something else is at `guard`.

    """
    if (native := gc_heap()) is not None:
        found: list[Any] | None = native.slots(guard, width, expected, first, count, MISSING)
        return found
    return _slots_by_ctypes(guard, width, expected, first, count)


def _slots_by_ctypes(guard: int, width: int, expected: int, first: int, count: int) -> list[Any] | None:
    check: Any = (ctypes.c_uint8 if width == 1 else ctypes.c_uint64).from_address(guard)
    words = [ctypes.c_uint64.from_address(first + k * WORD) for k in range(count)]
    objects = [ctypes.py_object.from_address(first + k * WORD) for k in range(count)]
    for _ in range(_TRIES):
        filled = _values_while(check, expected, words)
        if filled is None:
            return None
        try:
            there = _values_while(check, expected, [*compress(objects, filled)])
        except ValueError:  # a slot has been emptied since
            continue
        if there is None:
            return None
        values = iter(there)
        return [next(values) if is_filled else MISSING for is_filled in filled]
    return None


def _values_while(check: Any, expected: int, fields: list[Any]) -> list[Any] | None:
    """Yield the `.value` of each field, read directly after the check with no Python code in between."""
    checked = takewhile(expected.__eq__, map(attrgetter("value"), repeat(check, len(fields))))
    values = list(map(itemgetter(1), zip(checked, map(attrgetter("value"), fields), strict=False)))
    return values if len(values) == len(fields) and check.value == expected else None


def instance_dict(obj: Any, kind: type) -> dict[str, Any] | None:
    """The attributes of an instance: its own dict, or a copy of its inline values.

    Reading `obj.__dict__` would create a dict that stays with the instance. None if the type has no dict, or the
    instance has neither dict nor values yet.
    """
    for base in mro_tuple(kind):
        descriptor = _dict(base).get("__dict__")
        if descriptor is not None:
            if type(descriptor) is types.GetSetDescriptorType or type(descriptor) is types.MemberDescriptorType:
                return _own_dict(obj, kind, descriptor)
            return None  # a property of the user: not to be run
    return None


def _own_dict(obj: Any, kind: type, descriptor: Any) -> dict[str, Any] | None:
    if not LAYOUT_IS_KNOWN:
        if not any(type(held) is dict for held in gc.get_referents(obj)):
            return None  # reading it might create one
        values = descriptor.__get__(obj)
    elif _flags(kind) & _MANAGED_DICT:
        native = gc_heap()
        values = native.attributes(obj) if native is not None else _attributes(obj, kind, descriptor)
    elif (offset := _offset_of_dict(obj, kind)) and not word_at(id(obj) + offset):
        return None
    else:
        values = descriptor.__get__(obj)
    return values if type(values) is dict else None


def _offset_of_dict(obj: Any, kind: type) -> int:
    """Offset of the dict pointer in an instance, as _PyObject_ComputedDictPointer; 0 if its type has none."""
    offset = int(_dictoffset(kind))
    if offset >= 0:
        return offset
    size = word_at(id(obj), _SIZE_WORD)
    if int in mro(kind) and sys.version_info >= (3, 12):
        size >>= _DIGITS_FROM
    elif size >= 1 << 63:  # the sign of an int, up to Python 3.11
        size = (1 << 64) - size
    end = int(_basicsize(kind)) + size * int(_itemsize(kind))
    return -(-end // WORD) * WORD + offset


_SIZE_WORD = 2
"""Word with the number of items of a variable-size object (PyVarObject)."""
_DIGITS_FROM = 3
"""Bit of an int's `lv_tag` where the number of digits starts (Python 3.12: Include/cpython/longintrepr.h)."""
_MANAGED, _VALUES = -3, -4
"""Words before an instance of a type with a managed dict: the pointer to the dict, and in Python 3.11 one to the
values. In 3.12 they share the first word, with the lowest bit set for values (Include/internal/pycore_object.h).
"""
_VALID, _FIRST_VALUE = 2 * WORD + 3, 3 * WORD
"""Since Python 3.13 values are part of the instance, directly after its head: {capacity, size, embedded, valid}, a byte
each, and the first value in the next word (Include/internal/pycore_dict.h, struct _dictvalues).
"""


def _attributes(obj: Any, kind: type, descriptor: Any) -> Any:
    """`_gc_heap.attributes` by ctypes."""
    place = _inline_values_at(obj, kind)
    if place is None:
        return descriptor.__get__(obj) if word_at(id(obj), _MANAGED) else None
    guard, width, expected, first = place
    keys = word_at(id(kind), _CACHED_KEYS)
    names = _shared_names(keys) if keys else []
    values = slots_at(guard, width, expected, first, len(names))
    if values is None:  # another thread has just changed it
        return None
    return {name: value for name, value in zip(names, values, strict=True) if value is not MISSING}


def _inline_values_at(obj: Any, kind: type) -> tuple[int, int, int, int] | None:
    """Return (guard, its width, its value while the values are valid, address of the first); None without inline
    values.
    """
    if sys.version_info >= (3, 13):
        if not _flags(kind) & _INLINE_VALUES or word_at(id(obj), _MANAGED):
            return None
        guard = id(obj) + _VALID
        return (guard, 1, 1, id(obj) + _FIRST_VALUE) if ctypes.c_uint8.from_address(guard).value == 1 else None
    guard = id(obj) + (_MANAGED if sys.version_info >= (3, 12) else _VALUES) * WORD
    pointer = word_at(guard)
    if sys.version_info >= (3, 12):
        return (guard, WORD, pointer, pointer + 1) if pointer & 1 else None
    return (guard, WORD, pointer, pointer) if pointer else None


def _shared_names(keys: int) -> list[Any]:
    """The names shared by the instances of a type, in the order of their values.

    The keys are {references, log2 of the size, log2 of the bytes of the index, kind, ..., usable, entries, index}, then
    {name, value} for each entry (Include/internal/pycore_dict.h, struct _dictkeysobject). They live as long as the type
    and only gain names.
    """
    entries = word_at(keys, _ENTRIES)
    index = 1 << ctypes.c_uint8.from_address(keys + WORD + 1).value
    pairs = slots_at(keys + _ENTRIES * WORD, WORD, entries, keys + (_ENTRIES + 1) * WORD + index, 2 * entries)
    return [] if pairs is None else pairs[::2]


_ENTRIES = 3
"""Word of shared keys with the number of entries; the index follows."""


def _word_of_cached_keys() -> int:
    """The word of a heap type that points to the keys shared by its instances: the one after its `__qualname__`."""
    places = range(int(_basicsize(type)) // WORD - 1)
    named = [place for place in places if word_at(id(_Probe), place) == id(_qualname(_Probe))]
    return named[-1] + 1 if named else 0  # `ht_name` may be the same string and comes first


class _Probe:
    """Its instances show whether this Python keeps attributes at the expected place."""

    def __init__(self, *values: object) -> None:
        self.first, self.second, self.third = values


def _finds_inline_values() -> bool:
    """Whether inline values are found at the expected addresses; nothing read is used as an object."""
    values = object(), object(), object()
    probe = _Probe(*values)
    keys, place = word_at(id(_Probe), _CACHED_KEYS), _inline_values_at(probe, _Probe)
    if not _CACHED_KEYS or not keys or place is None or word_at(keys, _ENTRIES) != len(values):
        return False
    found = [word_at(place[-1], k) for k in range(len(values))]
    names = keys + (_ENTRIES + 1) * WORD + (1 << ctypes.c_uint8.from_address(keys + WORD + 1).value)
    written = [word_at(names, 2 * k) for k in range(len(values))]
    return found == [*map(id, values)] and written == [*map(id, _Probe.__init__.__code__.co_names)]


_CACHED_KEYS = _word_of_cached_keys() if LAYOUT_IS_KNOWN else 0
LAYOUT_IS_KNOWN = LAYOUT_IS_KNOWN and _finds_inline_values()
