"""Which objects keep tensor memory alive, and which lead to some at all?"""

from __future__ import annotations

import weakref
from enum import IntEnum
from types import CodeType

import numpy as np

from leakscope.capture.heap.native.autograd import Role, role_of
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.torch_older import SAVED_TENSOR

_LEAVES = (str, int, float, complex, bool, bytes, type(None), CodeType)


class Kind(IntEnum):
    """What an object is to the question; from `TENSOR` on, one that holds memory in C++."""

    LEAF = 0
    """Leads to no tensor, or, as a class does, to everything: gone through only where a hint names it."""
    PLAIN = 1
    ARRAY = 2
    """Of numpy's, which gc does not see through."""
    TENSOR = 3
    GRAD_NODE = 4
    STORAGE = 5
    """The Python object of one."""
    SAVED = 6
    """A saved tensor that Python has."""


class Kinds:
    """The kind of each type, decided once; a type that goes is not kept, and another at its address is not known."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[type], Kind]] = {}

    def of(self, kind: type) -> Kind:
        """What objects of this type are; nothing of the type's own is called."""
        known = self._known.get(id(kind))
        if known is None or known[0]() is not kind:
            known = self._known[id(kind)] = (weakref.ref(kind), _kind(kind))
        return known[1]


def _kind(kind: type) -> Kind:
    role = role_of(kind)
    if role is not Role.PLAIN:
        return {Role.TENSOR: Kind.TENSOR, Role.GRAD_NODE: Kind.GRAD_NODE, Role.STORAGE: Kind.STORAGE}[role]
    if kind is SAVED_TENSOR:
        return Kind.SAVED
    bases = mro(kind)
    if type in bases or any(kind is leaf for leaf in _LEAVES):
        return Kind.LEAF
    return Kind.ARRAY if np.ndarray in bases or memoryview in bases else Kind.PLAIN


KINDS = Kinds()
"""Of this process."""
