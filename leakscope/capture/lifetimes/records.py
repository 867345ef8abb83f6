"""One storage and one operation, as a watched step sees them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from leakscope.capture.source.user_source import at
from leakscope.record.kinds import Phase

Key = tuple[int, int]
"""(operation in its step, how many storages it had made before): the same in every step that does the same."""

GONE = 1 << 60
"""`died` of a storage that is still alive."""


class StorageRef(weakref.ref[Any]):
    """A weak reference to a storage that knows its record; its callback fires when the C++ storage dies."""

    __slots__ = ("record",)
    record: Record


@dataclass(slots=True)
class Record:
    """One storage; operations count from 0 over the watched steps, -1 stands for before them."""

    address: int
    bytes: int
    born: int
    ordinal: int
    first: int = -1
    last: int = -1
    died: int = GONE
    born_seconds: float = 0.0
    died_seconds: float = 0.0
    at_peak: int = -1
    """Bytes at the peak, -1 where it was not alive then."""
    summed: int = -1
    """The last operation that added another gradient to it."""
    handed_out: bool = False
    """numpy or native code has its address: it is in use for as long as it lives."""
    storage: int = -1
    """Index in the heap graph of the peak, -1 where it is not in there."""
    reference: StorageRef | None = None


class Operation(NamedTuple):
    """One operation that the dispatcher ran."""

    name: str
    code: CodeType | None
    """The user's code that asked for it, and the line in it."""
    line: int
    phase: Phase
    """forward, backward or optimizer."""
    node: str
    """The grad node that ran it."""
    module: str
    """`1.linear`: the module it ran in, by the names of the modules around it."""
    seconds: float
    call: int = -1
    """Sequence number of that grad node."""

    def where(self) -> str:
        """`train.py:41 forward (aten::addmm)`."""
        inside = f"{self.name} in {self.node}" if self.node else self.name
        return inside if self.code is None else f"{at(self.code.co_filename, self.line)} {self.code.co_name} ({inside})"
