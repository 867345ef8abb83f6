"""What is reached from roots that are certainly alive, by references that are there now?

Whatever is reached lives, whichever hint led there; what is not reached may be garbage, or only hidden.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Set
from types import FrameType
from typing import Any

from leakscope.capture.heap.native.autograd import Types, node_holds, saved_holds, tensor_holds
from leakscope.capture.heap.native.raw_memory import Words, own_memory
from leakscope.capture.heap.native.references import deepest_walk
from leakscope.capture.heap.native.storages import sparse_parts, storage_object
from leakscope.capture.heap.python.code_referents import frame_locals
from leakscope.capture.heap.python.untracked import untracked_referents
from leakscope.capture.held.kinds import KINDS, Kind
from leakscope.capture.originals import gc
from leakscope.capture.torch_older import SAVED_TENSORS_TELL
from leakscope.capture.torch_private import has_storage

_SEARCHED = 4_000
"""Objects that no hint names and that are gone through, first those near the block and then those near any running
frame; chosen: some milliseconds each."""
_ASKED = 5_000
"""Tensors and grad nodes that are asked what C++ holds; chosen: tens of milliseconds."""
_NEAREST = 3
"""Frames about the block that are searched first; chosen."""


class Walk:
    """From modules and running frames down to what is `wanted`.

    That and the hints to it are given by address; `storages` of what is wanted are Python objects of storages, and
    `alive` tells which of the wanted are there still, before they are searched for.
    """

    def __init__(
        self, wanted: Collection[int], hints: Collection[int], storages: Set[int], alive: Callable[[set[int]], set[int]]
    ) -> None:
        self.missing = set(wanted)
        """What of it is not reached yet."""
        self._wanted, self._hints, self._storages, self._alive = wanted, hints, storages, alive
        self._above: dict[int, int] = {}
        """Address of each object reached to that of the one through which it was; 0 for a root."""
        self._named: deque[Any] = deque()
        """Reached and named by a hint, not gone through yet."""
        self._others: deque[Any] = deque()
        self._native: deque[Any] = deque()
        """Reached and not asked yet what C++ holds."""
        self._asked = 0
        self._types = Types()
        self._kinds: dict[int, Kind] = {}

    def run(self, frames: list[FrameType]) -> None:
        """Walk until nothing is missing, or all that may be searched has been; `frames` run, innermost first."""
        if self.missing:
            self._begin_at_modules()
        for group in (frames[:_NEAREST], frames[_NEAREST:]):
            if self.missing:
                self._begin_at(group)
                self._follow()
            if self.missing:
                self.missing = self._alive(self.missing)
            left = _SEARCHED
            while self.missing and self._others and left:
                left -= 1
                self._go_through(self._others.popleft())
                self._follow()
        for waiting in (self._named, self._others, self._native):
            waiting.clear()

    def paths(self) -> set[int]:
        """Addresses on one path from a root to each that was wanted and reached."""
        found: set[int] = set()
        for wanted in self._wanted:
            address = wanted
            while address in self._above and address not in found:
                found.add(address)
                address = self._above[address]
        return found

    def _begin_at_modules(self) -> None:
        """Begin at the namespaces that a hint names; through the others nothing leads on."""
        namespaces = [held for held in gc.get_referents(*sys.modules.copy().values()) if type(held) is dict]
        for names in namespaces:
            if id(names) in self._hints:
                self._reach(names, 0)
        self._above = dict.fromkeys(map(id, namespaces), 0) | self._above

    def _begin_at(self, frames: list[FrameType]) -> None:
        for frame in frames:
            for value in frame_locals(frame).values():
                self._reach(value, 0)
            self._above.setdefault(id(frame.f_globals), 0)
            self._go_through(frame.f_globals)

    def _follow(self) -> None:
        """Go through all that hints name, then ask what C++ holds, as long as anything is missing."""
        while self.missing:
            if self._named:
                self._go_through(self._named.popleft())
            elif self._native and self._asked < min(_ASKED, deepest_walk()):
                with own_memory() as words:
                    while self._native and not self._named and self.missing:
                        self._ask(self._native.popleft(), words)
            else:
                return

    def _go_through(self, obj: Any) -> None:
        for held in gc.get_referents(obj):
            self._reach(held, id(obj))
        if self._kinds.get(id(type(obj))) is Kind.ARRAY:
            for held in untracked_referents(obj):
                self._reach(held, id(obj))

    def _ask(self, obj: Any, words: Words) -> None:
        self._asked += 1
        for held in self._held_in_native(obj, words):
            self._reach(held, id(obj))

    def _held_in_native(self, obj: Any, words: Words) -> Iterator[Any]:
        kind = self._kinds[id(type(obj))]
        if kind is Kind.TENSOR:
            if has_storage(obj) and not self.missing.isdisjoint(self._storages):  # asking makes one
                yield storage_object(obj)
            yield from (part for _, part in sparse_parts(obj))
            yield from (held.target for held in tensor_holds(obj, []))
        elif kind is Kind.GRAD_NODE:
            yield from (held.target for held in node_holds(obj, self._types, words))
        elif kind is Kind.SAVED and SAVED_TENSORS_TELL:
            yield from (held.target for held in saved_holds(obj, "", self._types, words))

    def _reach(self, obj: Any, above: int) -> None:
        address = id(obj)
        if address in self._above:
            return
        kind = self._kinds.get(id(type(obj)))
        if kind is None:
            kind = self._kinds[id(type(obj))] = KINDS.of(type(obj))
        named = address in self._hints
        if kind is Kind.LEAF and not named:
            return
        self._above[address] = above
        if kind >= Kind.TENSOR:
            self.missing.discard(address)
            self._native.append(obj)
        (self._named if named or kind >= Kind.TENSOR else self._others).append(obj)
