"""The walk of the fast check: which objects can lead to tensor memory."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from enum import IntEnum
from types import CodeType, FrameType
from typing import Any

import numpy as np

from leakscope.heap._sweep_fallback import untracked_referents
from leakscope.heap.autograd import (
    Held,
    Role,
    Types,
    Words,
    node_holds,
    own_memory,
    role_of,
    saved_holds,
    tensor_holds,
)
from leakscope.heap.native_graph import deepest_walk
from leakscope.heap.referents import held_by_frame
from leakscope.heap.storages import sparse_parts
from leakscope.heap.sweep import listed
from leakscope.originals import gc
from leakscope.process.raw_types import mro
from leakscope.process.torch_compat import SAVED_TENSOR, SAVED_TENSORS_TELL, TensorBase, has_storage

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


UNTOLD = "this torch's saved tensors do not tell what they hold"
"""A problem: what they hold is missing."""


def held_in_native(obj: Any, kind: Kind, types: Types, problems: list[str], words: Words) -> Iterator[Held]:
    """Each reference; `problems` get a sentence for what could not be read, as do the gaps of `types`."""
    if kind is Kind.TENSOR:
        yield from tensor_holds(obj, problems)
    elif kind is Kind.GRAD_NODE:
        yield from node_holds(obj, types, words)
    elif kind is Kind.SAVED and SAVED_TENSORS_TELL:
        yield from saved_holds(obj, "", types, words)
    elif kind is Kind.SAVED:
        problems.append(UNTOLD)


class Namespaces:
    """Address of each module's dict, read again when there are more or fewer modules.

    One that is missed or gone costs time alone: what is reached lives all the same.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._count = 0

    def addresses(self) -> Set[int]:
        """Those of all modules."""
        if len(sys.modules) != self._count:
            modules = sys.modules.copy()
            self._count = len(modules)
            self._names = {
                id(held): name
                for name, module in modules.items()
                for held in gc.get_referents(module)
                if _is_dict(held)
            }
        return self._names.keys()

    def at(self, addresses: Set[int]) -> Iterator[dict[str, Any]]:
        """Those that are at one of these addresses."""
        for address in self.addresses() & addresses:
            for held in gc.get_referents(sys.modules.get(self._names[address])):
                if id(held) == address and _is_dict(held):
                    yield held


def _is_dict(held: Any) -> bool:
    return type(held) is dict


NAMESPACES = Namespaces()
"""Of this process."""


class Seen:
    """Some objects, each held weakly where it can be; a grad node takes no weak reference and counts by its address."""

    __slots__ = ("_refs",)

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        self._refs = {id(obj): _weakly(obj) for obj in objects}

    @property
    def addresses(self) -> Set[int]:
        """Of all of them."""
        return self._refs.keys()

    def has(self, obj: Any) -> bool:
        """Whether it is one of them, and not another at the address of one that is gone."""
        ref = self._refs.get(id(obj), _gone)
        return ref is None or ref() is obj

    def any_gone(self) -> bool:
        """Whether one of them is known to be gone."""
        return any(ref is not None and ref() is None for ref in self._refs.values())


def _gone() -> None:
    """Stands for a weak reference to nothing."""


def _weakly(obj: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(obj)
    except TypeError:
        return None


Mark = list[None]
"""The youngest of all objects: as long as it is in the youngest generation, all that came after it is there as well,
for every collection and `gc.freeze()` move that generation as a whole (CPython Modules/gcmodule.c)."""
_YOUNG = (0, 1)
"""The generations that an object goes through before the oldest."""
_COUNT = 0xFFFFFFFF
"""The bits of an object's first word that are its count; newer Pythons have flags in the others."""


class Tensors:
    """Addresses of what keeps tensor memory alive from Python: tensors, grad nodes, saved tensors, storages.

    Nothing is held, not even weakly (`torch.utils.swap_tensors` refuses a tensor that has a weak reference): an address
    stays known until memory shows that its object is gone.
    """

    def __init__(self) -> None:
        self.known: set[int] = set()
        """All that there were when last asked, some of which may have gone."""
        self.new: set[int] = set()
        """All objects that came lately, tensors or not."""
        self.storages: set[int] = set()
        """Of the known ones those that are Python objects of storages."""
        self.mark: Mark | None = None
        self._kinds: set[int] = set()
        """Types that the known ones have had."""

    def take_up(self, full: bool = False) -> set[int] | None:
        """Know all that there are, collect what is young or all, and draw a line: what comes now comes after the mark.

        Returns the known ones that came since the last mark; None where gc had made it old, and all had to be read.
        """
        young, self.new = listed(*_YOUNG)
        since = self._add(young) if id(self.mark) in self.new else None
        young.clear()
        if since is None:
            self.scan()
        gc.collect(2 if full else 1)
        self.mark = []
        return since

    def take_since(self, mark: Mark | None) -> set[int] | None:
        """Know what came since the mark as well. Returns as `take_up`."""
        youngest, places = listed(_YOUNG[0])
        self.new |= places
        if mark is not None and id(mark) in places:
            return self._add(youngest)
        youngest.clear()
        self.scan()
        return None

    def draw_line(self) -> None:
        """What comes now comes after the mark; nothing is collected."""
        self.mark = []

    def scan(self) -> None:
        """Know all that there are, from all that gc knows."""
        self._add(listed()[0])

    def _add(self, objects: Sequence[Any]) -> set[int]:
        kinds = {id(kind): kind for kind in map(type, objects)}
        wanted = {at: kind for at, kind in ((at, KINDS.of(kind)) for at, kind in kinds.items()) if kind >= Kind.TENSOR}
        if not wanted:
            return set()
        self._kinds |= wanted.keys()
        found = {id(obj): id(type(obj)) for obj in objects if id(type(obj)) in wanted}
        self.known |= found.keys()
        self.storages |= {at for at, kind in found.items() if wanted[kind] is Kind.STORAGE}
        return set(found)

    def forget_the_dead(self, addresses: Collection[int]) -> set[int]:
        """Leave out those of these that memory shows to be gone; returns the others.

        An object that lives has a count of references above 0, and deallocating one leaves 0 there
        (CPython Objects/object.c); memory that was given back or used again shows no such type.
        """
        kinds = self._kinds | _subclasses(TensorBase)  # an object may have been given another class
        with own_memory() as words:
            if not words(id(self), 2):  # a system without /proc
                self.known.clear()
                self.scan()
                return self.known.intersection(addresses)
            read = {address: words(address, 2) for address in addresses}
        alive = {address for address, word in read.items() if word and word[0] & _COUNT and word[1] in kinds}
        self.known.difference_update(read.keys() - alive)
        self.storages &= self.known
        return alive


def _subclasses(kind: type) -> set[int]:
    """Addresses of a type and of all that are made from it."""
    waiting, seen = [kind], {id(kind)}
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        inner = [other for other in subclasses if id(other) not in seen]
        seen.update(map(id, inner))
        waiting += inner
    return seen


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
