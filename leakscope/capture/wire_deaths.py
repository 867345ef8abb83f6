"""When did each tensor, storage, Work and future of the wire die? The moment is noted in C, and told when somebody asks.

A finalizer in Python runs in the middle of the program's own work, with cold caches, at some microseconds each. A weak
reference calls anything with itself as the argument, and `defaultdict(perf_counter).__getitem__` of a key that is not
there yet calls the clock and keeps the answer under that key, all without a line of Python.
"""

from __future__ import annotations

import time
import weakref
from collections import defaultdict

from leakscope.capture.wire_records import Operation


class Noted(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that is a key by itself; that of Python has the hash of its object, which a dead tensor lacks."""

    __slots__ = ("address",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    address: int


class Mark(Noted):
    """Of a tensor; its operation keeps it."""

    __slots__ = ("operation",)
    operation: Operation


class StorageMark(Noted):
    """Of a storage, which may serve one operation after the other; knows the latest."""

    __slots__ = ("operation",)
    operation: Operation


class Handle(Noted):
    """Of a Work; knows its operations: one, or all of a coalesced group."""

    __slots__ = ("asks", "number", "operations")
    operations: tuple[Operation, ...]
    number: int
    """Of the latest of them."""
    asks: bool
    """Something has to be read off when a wait for it has returned, see `Ledger.ask`."""


class FutureHandle(Noted):
    """Of a future; knows the operations that whoever has it can wait for."""

    __slots__ = ("operations",)
    operations: tuple[Operation, ...]


class Deaths:
    """Weak references and the readings of the clock at which their objects died."""

    def __init__(self) -> None:
        moments: defaultdict[Noted, float] = defaultdict(time.perf_counter)
        self.note = moments.__getitem__
        """To be given to a weak reference as its callback."""
        self.more = moments.__len__
        """How many nobody has entered yet."""
        self.latest = moments.popitem
        """Take one of them out, the latest; others may come meanwhile, in any thread."""
