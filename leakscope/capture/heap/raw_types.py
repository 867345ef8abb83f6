"""What does a type say of itself? Read as C has it, so that no code of a metaclass's runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

mro_tuple: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""The very tuple that a type has."""
_dict = type.__dict__["__dict__"].__get__


class Bases(tuple[type, ...]):
    """Types that are told apart by identity: a plain tuple's `in` runs the `__eq__` of a metaclass."""

    __slots__ = ()

    def __contains__(self, kind: object) -> bool:
        return any(base is kind for base in self)


def mro(kind: type) -> Bases:
    """The bases of a type, itself first."""
    return Bases(mro_tuple(kind))


def type_dict(kind: type) -> Any:
    """`kind.__dict__`."""
    return _dict(kind)
