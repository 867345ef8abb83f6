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
from typing import Any

from leakscope.errors import unsupported_python
from leakscope.native import gc_heap
from leakscope.originals import gc

mro_tuple: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""The very tuple that a type has."""
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
"""Flags of a type: Py_TPFLAGS_HEAPTYPE, HAVE_GC, MANAGED_DICT and, since Python 3.13, INLINE_VALUES (CPython
Include/object.h)."""

WORD = struct.calcsize("P")
LAYOUT_IS_KNOWN = not unsupported_python() and struct.calcsize("q") == WORD and not hasattr(sys, "gettotalrefcount")
"""Whether the fields of CPython's own structures are where this module reads them."""
_TRIES = 3
"""Reads of some slots by ctypes, of which each fails where another thread empties one meanwhile."""
MISSING = object()
"""Stands for an empty slot."""


_CONTAINERS = (list, dict, set, collections.deque)


class Bases(tuple[type, ...]):
    """Types that are told apart by identity: a plain tuple's `in` runs the `__eq__` of a metaclass."""

    __slots__ = ()

    def __contains__(self, kind: object) -> bool:
        return any(base is kind for base in self)


def mro(kind: type) -> Bases:
    """The bases of a type, itself first."""
    return Bases(mro_tuple(kind))


def container_base(kind: type) -> Any:
    """The builtin container that can gain items which a type is or is made from, None for any other."""
    bases = mro(kind)
    return next((base for base in _CONTAINERS if base in bases), None)


def all_keys_are(kind: type, values: Any) -> bool:
    """Whether all keys of a dict are of this very type; in one call of C, as another thread may change it."""
    return all(map(is_, map(type, dict.keys(values)), repeat(kind)))


def is_leakscopes(kind: type) -> bool:
    """Whether a type is one of leakscope's own."""
    return is_of_leakscope(_dict(kind).get("__module__"))


def is_of_leakscope(module: object) -> bool:
    """Whether a `__module__` is the name of a module of leakscope's own."""
    return type(module) is str and module.partition(".")[0] in ("leakscope", "leakscope_cli")


def type_dict(kind: type) -> Any:
    """`kind.__dict__`."""
    return _dict(kind)


def made_in_python(kind: type) -> bool:
    """Whether a type was made while Python ran, by a class statement as a rule, and not by C as a static one."""
    return bool(_flags(kind) & _HEAP_TYPE)


def has_gc(kind: type) -> bool:
    """Whether gc can track objects of a type."""
    return bool(_flags(kind) & _HAVE_GC)


def type_name(kind: type) -> str:
    """`__name__` of a type."""
    return str(_name(kind))


def type_qualname(kind: type) -> str:
    """`__qualname__` of a type: `Outer.Inner`."""
    return str(_qualname(kind))


def qualified_name(kind: type) -> str:
    """`module.QualName` of a type; builtins without their module."""
    module = _dict(kind).get("__module__")
    if type(module) is not str and not made_in_python(kind):
        module = _module(kind)
    name = type_qualname(kind)
    return name if module in ("builtins", None) or type(module) is not str else f"{module}.{name}"


def word_at(address: int, offset: int = 0) -> int:
    """One machine word of a live object's own memory, as a number."""
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
        except ValueError:  # a slot was emptied since
            continue
        if there is None:
            return None
        values = iter(there)
        return [next(values) if is_filled else MISSING for is_filled in filled]
    return None


def _values_while(check: Any, expected: int, fields: list[Any]) -> list[Any] | None:
    """`.value` of each field, each read right after the check and with no Python code in between."""
    checked = takewhile(expected.__eq__, map(attrgetter("value"), repeat(check, len(fields))))
    values = list(map(itemgetter(1), zip(checked, map(attrgetter("value"), fields), strict=False)))
    return values if len(values) == len(fields) and check.value == expected else None


def instance_dict(obj: Any, kind: type) -> dict[str, Any] | None:
    """The attributes of an instance: its own dict, or a copy of the values that CPython keeps without one.

    Reading `obj.__dict__` would make a dict that stays with the instance. None where the type has no dict, and where
    the instance has neither a dict nor values yet.
    """
    for base in mro_tuple(kind):
        descriptor = _dict(base).get("__dict__")
        if descriptor is not None:
            if type(descriptor) is types.GetSetDescriptorType or type(descriptor) is types.MemberDescriptorType:
                return _own_dict(obj, kind, descriptor)
            return None  # a property of the user's: not to be run
    return None


def _own_dict(obj: Any, kind: type, descriptor: Any) -> dict[str, Any] | None:
    if not LAYOUT_IS_KNOWN:
        if not any(type(held) is dict for held in gc.get_referents(obj)):
            return None  # reading it might make one
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
    """Where in an instance the pointer to its dict is, as _PyObject_ComputedDictPointer; 0 where its type has none."""
    offset = int(_dictoffset(kind))
    if offset >= 0:
        return offset
    size = word_at(id(obj), _SIZE)
    if int in mro(kind) and sys.version_info >= (3, 12):
        size >>= _DIGITS_FROM
    elif size >= 1 << 63:  # the sign of an int, up to Python 3.11
        size = (1 << 64) - size
    end = int(_basicsize(kind)) + size * int(_itemsize(kind))
    return -(-end // WORD) * WORD + offset


_SIZE = 2
"""Word of an object of variable size that says how many items it has (PyVarObject)."""
_DIGITS_FROM = 3
"""Bit of an int's `lv_tag` from which on it counts digits (Python 3.12: Include/cpython/longintrepr.h)."""
_MANAGED, _VALUES = -3, -4
"""Words before an instance of a type with a managed dict: the pointer to the dict, and in Python 3.11 one to the
values. In 3.12 they share the first, with the lowest bit set for values (Include/internal/pycore_object.h)."""
_VALID, _FIRST_VALUE = 2 * WORD + 3, 3 * WORD
"""Since Python 3.13 values are part of the instance, right behind its head: {capacity, size, embedded, valid}, a byte
each, and in the next word the first value (Include/internal/pycore_dict.h, struct _dictvalues)."""


def _attributes(obj: Any, kind: type, descriptor: Any) -> Any:
    """As `_gc_heap.attributes`, by ctypes."""
    place = _inline_values_at(obj, kind)
    if place is None:
        return descriptor.__get__(obj) if word_at(id(obj), _MANAGED) else None
    guard, width, expected, first = place
    keys = word_at(id(kind), _CACHED_KEYS)
    names = _shared_names(keys) if keys else []
    values = slots_at(guard, width, expected, first, len(names))
    if values is None:  # another thread has changed it just now
        return None
    return {name: value for name, value in zip(names, values, strict=True) if value is not MISSING}


def _inline_values_at(obj: Any, kind: type) -> tuple[int, int, int, int] | None:
    """(guard, its width, what it is while the values are valid, address of the first); None where there are none."""
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
    """The names that the instances of a type share, in the order of their values.

    Its keys are {references, log2 of the size, log2 of the bytes of the index, kind, ..., usable, entries, index}, then
    {name, value} for each entry (Include/internal/pycore_dict.h, struct _dictkeysobject). They live as long as the type
    and only gain names.
    """
    entries = word_at(keys, _ENTRIES)
    index = 1 << ctypes.c_uint8.from_address(keys + WORD + 1).value
    pairs = slots_at(keys + _ENTRIES * WORD, WORD, entries, keys + (_ENTRIES + 1) * WORD + index, 2 * entries)
    return [] if pairs is None else pairs[::2]


_ENTRIES = 3
"""Word of shared keys that counts their entries; the index follows."""


def _word_of_cached_keys() -> int:
    """Which word of a type made in Python points to the keys its instances share: the one behind its `__qualname__`."""
    places = range(int(_basicsize(type)) // WORD - 1)
    named = [place for place in places if word_at(id(_Probe), place) == id(_qualname(_Probe))]
    return named[-1] + 1 if named else 0  # `ht_name` may be the same string and stands before it


class _Probe:
    """Instances of it show whether this Python keeps attributes where they are looked for."""

    def __init__(self, *values: object) -> None:
        self.first, self.second, self.third = values


def _finds_inline_values() -> bool:
    """Whether the attributes of an instance are found by their addresses; nothing read is taken as an object."""
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
