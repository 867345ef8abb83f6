"""What is each type of the heap to a look? Judged once, and remembered for as long as the type lives."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.native.autograd import role_of
from leakscope.capture.heap.raw_types import container_base, is_leakscopes

ROLE = 3
"""Bits of a verdict that are the `Role`."""
GAINING = 4
"""Bit of a verdict: objects of the type are containers that can gain items."""
OURS = 8
"""Bit of a verdict: the type is leakscope's own."""

_verdicts: dict[int, int] = {}
"""By the type's address."""
_types: dict[int, weakref.ref[type]] = {}
"""Says which of them still live: an address goes to another type as soon as one is gone.

A class has a weak reference already, in its base's list of subclasses (CPython Objects/typeobject.c, add_subclass):
none is made. What a type is made from does not change in its lifetime, for neither does the layout of its objects.
"""


def verdicts_on(kinds: Iterable[type]) -> NDArray[np.int8]:
    """The verdict on each of these types."""
    for address in [address for address, kind in list(_types.items()) if kind() is None]:
        del _types[address], _verdicts[address]
    known = _verdicts
    verdicts = [known.get(id(kind)) or _judge(kind) for kind in kinds]
    return np.array(verdicts, dtype=np.int8) & (_JUDGED - 1)


def _judge(kind: type) -> int:
    verdict = role_of(kind) | GAINING * (container_base(kind) is not None) | OURS * is_leakscopes(kind) | _JUDGED
    _types[id(kind)] = weakref.ref(kind)
    _verdicts[id(kind)] = verdict
    return verdict


_JUDGED = 16
"""Bit of every verdict that is remembered, so that none is 0."""
