"""What do a type and its instance say of themselves? Read as C has it, so that no code of a metaclass's runs."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from itertools import repeat
from operator import is_
from typing import Any

mro_tuple: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""The very tuple that a type has."""
_dict = type.__dict__["__dict__"].__get__
_flags = type.__dict__["__flags__"].__get__
_name = type.__dict__["__name__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_module = type.__dict__["__module__"].__get__
_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE (CPython Include/object.h)."""
_HAVE_GC = 1 << 14
"""Flags of a type, Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_HAVE_GC (CPython Include/object.h)."""


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


def instance_dict(obj: Any, kind: type) -> dict[str, Any] | None:
    """The dict of an instance; None where its type has none.

    On Python 3.11 and 3.12 this makes a dict object for an instance whose values stand inline (allowed residue).
    """
    for base in mro_tuple(kind):
        descriptor = _dict(base).get("__dict__")
        if descriptor is not None:
            if type(descriptor) is types.GetSetDescriptorType or type(descriptor) is types.MemberDescriptorType:
                values = descriptor.__get__(obj)
                return values if type(values) is dict else None
            return None  # a property of the user's: not to be run
    return None
