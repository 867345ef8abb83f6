"""What is reached from roots that are certainly alive, by references that are there now?

Whatever is reached lives, whichever hint led there; what is not reached may be garbage, or only hidden.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from types import FrameType
from typing import Any

from leakscope.capture.heap.native.autograd import Types
from leakscope.capture.heap.native.raw_memory import Words, own_memory
from leakscope.capture.heap.native.references import deepest_walk
from leakscope.capture.heap.native.storages import sparse_parts
from leakscope.capture.heap.python.code_referents import held_by_frame
from leakscope.capture.heap.python.untracked import untracked_referents
from leakscope.capture.held.kinds import KINDS, Kind
from leakscope.capture.held.namespaces import NAMESPACES
from leakscope.capture.held.native import held_in_native
from leakscope.capture.torch_private import TensorBase, has_storage
from leakscope.originals import gc

_SEARCHED = 4_000
"""Objects that no hint names and that are gone through, first those near the block and then those near any running
frame; chosen: some milliseconds each."""
_ASKED = 5_000
"""Tensors and grad nodes that are asked what C++ holds; chosen: tens of milliseconds."""
_NEAREST = 3
"""Frames about the block that are searched first; chosen."""


class Walk:
    """From modules and running frames down to what is `wanted`.

    All is given by address. `paths` led to what is wanted before, `new` objects may lead there now; `storages` of what
    is wanted are Python objects of storages. `alive` tells which of the wanted are there still, before they are
    searched for, and `enough` whether these need no search. `one_by_one` tells apart which of the paths led on; without
    it, they are all gone through at once, several times as fast.
    """

    def __init__(
        self,
        wanted: Collection[int],
        paths: Set[int],
        new: Set[int],
        storages: Set[int],
        alive: Callable[[set[int]], set[int]],
        enough: Callable[[set[int]], bool],
        one_by_one: bool,
    ) -> None:
        self.missing = set(wanted)
        """What of it is not reached yet."""
        self.was_enough = False
        """What is missing needed no search."""
        self._wanted, self._hints, self._new, self._storages = wanted, paths, new, storages
        self._alive, self._enough = alive, enough
        self._namespaces = NAMESPACES.addresses()
        """Gone through only where a hint names them."""
        self._ways: set[int] | None = (self.missing | paths) - self._namespaces
        """While only what was known before is followed: what may be on the way."""
        self._above: dict[int, int] = {}
        """Address of each object reached to that of the one through which it was; 0 for a root."""
        self.one_by_one = one_by_one
        self._named: deque[Any] = deque()
        """Reached and named by a hint, not gone through yet."""
        self._arrays: deque[Any] = deque()
        """Of those the ones that gc does not see through."""
        self._others: deque[Any] = deque()
        self._tensors: deque[Any] = deque()
        """Reached, memory in C++ and all, and not gone through yet: few of them hold anything in Python."""
        self._unasked: deque[Any] = deque()
        """Of those the ones that were not asked yet what they hold in C++."""
        self._stored: list[Any] = []
        """And those not asked yet for the Python object of their storage."""
        self._asks = min(_ASKED, deepest_walk())
        """How many may still be asked."""
        self._words: Words
        self._types = Types()
        self._kinds: dict[int, Kind] = {}

    def run(self, frames: list[FrameType], values: Collection[Any] = ()) -> None:
        """Walk until nothing is missing, or all that may be searched has been; `frames` run, innermost first, and
        `values` are held by others that are not walked through.
        """
        with own_memory() as self._words:
            self._begin_at(frames, values)
            if self.missing:
                self.missing = self._alive(self.missing)
                self.was_enough = bool(self.missing) and self._enough(self.missing)
            if self.missing and not self.was_enough:
                self._search(frames, values)
        self._let_go()

    def _search(self, frames: list[FrameType], values: Collection[Any]) -> None:
        """Walk again, through what is new too, and then through what no hint names."""
        self._let_go()
        self._ways, self._hints, self._above, self.one_by_one = None, self._hints | self._new, {}, True
        self._asks = min(_ASKED, deepest_walk())
        groups: list[deque[Any]] = []
        for near in (frames[:_NEAREST], frames[_NEAREST:]):
            if self.missing:
                self._others = deque()
                groups.append(self._others)
                self._begin_at(near, values)
        for self._others in groups:
            left = _SEARCHED
            while self.missing and self._others and left:
                left -= 1
                self._go_through(self._others.popleft())
                self._follow()
            self._others.clear()

    def _let_go(self) -> None:
        for waiting in (self._named, self._arrays, self._others, self._tensors, self._unasked, self._stored):
            waiting.clear()

    def paths(self) -> set[int]:
        """Addresses on one path from a root to each that was wanted and reached; not one by one, on every path."""
        if not self.one_by_one:
            return set(self._above)
        found: set[int] = set()
        for wanted in self._wanted:
            address = wanted
            while address in self._above and address not in found:
                found.add(address)
                address = self._above[address]
        return found

    def _begin_at(self, frames: list[FrameType], values: Collection[Any]) -> None:
        """Begin at these frames and values and the namespaces that a hint names, and follow the hints."""
        for names in NAMESPACES.at(self._hints):
            self._above[id(names)] = 0
            self._named.append(names)
        self._reach_all(values, 0)
        for frame in frames:
            self._reach_all(held_by_frame(frame), 0)
            self._above.setdefault(id(frame.f_globals), 0)
            self._go_through(frame.f_globals)
        self._follow()

    def _follow(self) -> None:
        """Go through all that hints name, then ask what C++ holds, as long as anything is missing."""
        while self.missing:
            if self._named:
                self._go_through_all(self._named)
            elif self._arrays:
                self._go_through(self._arrays.popleft())
            elif self._stored:
                self._ask_for_storages()
            elif self._tensors:
                self._go_through_all(self._tensors)
            elif self._unasked and self._asks:
                self._asks -= 1
                obj = self._unasked.popleft()
                for held in self._held_in_native(obj):
                    self._reach(held, id(obj))
            else:
                return

    def _go_through_all(self, waiting: deque[Any]) -> None:
        if self.one_by_one:
            self._go_through(waiting.popleft())
        else:
            objects = [*waiting]
            waiting.clear()
            self._reach_all(gc.get_referents(*objects), 0)

    def _go_through(self, obj: Any) -> None:
        self._reach_all(gc.get_referents(obj), id(obj))
        if self._kind(obj) is Kind.ARRAY:
            self._reach_all([*untracked_referents(obj)], id(obj))

    def _reach_all(self, objects: Collection[Any], above: int) -> None:
        """All of these, or those of them that may be on the way: most lead nowhere, and are told apart in C."""
        if self._ways is None:
            for obj in objects:
                if id(obj) not in self._namespaces:
                    self._reach(obj, above)
        elif near := self._ways.intersection(map(id, objects)):
            self._ways -= near
            self.missing -= near
            self._above |= dict.fromkeys(near, above)
            alike: dict[int, list[Any]] = {}
            for obj in {id(obj): obj for obj in objects if id(obj) in near}.values():
                alike.setdefault(id(type(obj)), []).append(obj)
            for several in alike.values():
                self._await(self._kind(several[0]), several)

    def _ask_for_storages(self) -> None:
        stored, self._stored = self._stored, []
        if not self.missing.isdisjoint(self._storages):  # asking makes one
            # `storage_object` without its own guard: the walk has one
            self.missing.difference_update(map(id, map(TensorBase.untyped_storage, filter(has_storage, stored))))

    def _held_in_native(self, obj: Any) -> Iterator[Any]:
        kind = self._kind(obj)
        if kind is Kind.TENSOR:
            yield from (part for _, part in sparse_parts(obj))
        yield from (held.target for held in held_in_native(obj, kind, self._types, [], self._words))

    def _reach(self, obj: Any, above: int) -> None:
        address = id(obj)
        if address in self._above:
            return
        kind, named = self._kind(obj), address in self._hints
        if kind is Kind.LEAF and not named:
            return
        self._above[address] = above
        self.missing.discard(address)
        if named or kind >= Kind.TENSOR:
            self._await(kind, (obj,))
        else:
            self._others.append(obj)

    def _await(self, kind: Kind, objects: Sequence[Any]) -> None:
        """Go through these later, all of one kind; they are wanted or named by a hint."""
        if kind < Kind.TENSOR:
            (self._arrays if kind is Kind.ARRAY else self._named).extend(objects)
            return
        self._tensors.extend(objects)
        if kind is Kind.TENSOR:
            self._stored.extend(objects)
        if kind is not Kind.STORAGE:
            self._unasked.extend(objects)

    def _kind(self, obj: Any) -> Kind:
        kind = self._kinds.get(id(type(obj)))
        if kind is None:
            kind = self._kinds[id(type(obj))] = KINDS.of(type(obj))
        return kind
