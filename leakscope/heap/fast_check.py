"""The fast check: whether tensor memory is retained, without a full heap snapshot."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from enum import IntEnum
from types import CodeType, FrameType
from typing import Any

import numpy as np

from leakscope.graph.model import IMMORTAL, REACHABLE
from leakscope.heap._sweep_fallback import untracked_referents
from leakscope.heap.autograd import (
    NativeReference,
    Role,
    Types,
    Words,
    node_holds,
    own_memory,
    role_of,
    saved_holds,
    tensor_holds,
)
from leakscope.heap.liveness import Liveness
from leakscope.heap.native_graph import deepest_walk
from leakscope.heap.referents import held_by_frame
from leakscope.heap.storages import is_meta, sparse_parts, storage_bytes, storage_object, storage_of, tensor_over
from leakscope.heap.sweep import listed, listed_at
from leakscope.originals import gc
from leakscope.process.frames import running_frames
from leakscope.process.gc_control import no_automatic_gc
from leakscope.process.raw_types import TypeCache, mro
from leakscope.process.torch_compat import (
    SAVED_TENSOR,
    SAVED_TENSORS_READABLE,
    RecordingPart,
    StorageBase,
    TensorBase,
    address_of_storage,
    has_storage,
    lacks,
    without_functions,
)

_LEAVES = (str, int, float, complex, bool, bytes, type(None), CodeType)


class Kind(IntEnum):
    """The kind of an object for the fast check; from `TENSOR` on, one that holds memory in C++."""

    LEAF = 0
    """Leads to no tensor or, like a class, to everything: followed only if a hint names it."""
    PLAIN = 1
    ARRAY = 2
    """A numpy array, which gc does not traverse."""
    TENSOR = 3
    GRAD_NODE = 4
    STORAGE = 5
    """The Python object of a storage."""
    SAVED = 6
    """A saved tensor held by Python."""


class TypeKinds:
    """The kind of each type, determined once. Freed types are dropped, and a new type at the same address is judged
    anew.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[type], Kind]] = {}

    def of(self, kind: type) -> Kind:
        """The kind of objects of this type; calls none of the type's code."""
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


KINDS = TypeKinds()
"""The cache of this process."""


UNKNOWN_CONTENTS = "this torch's saved tensors do not tell what they hold"
"""Problem text: their referents are missing."""


def held_in_native(obj: Any, kind: Kind, types: Types, problems: list[str], words: Words) -> Iterator[NativeReference]:
    """Yield each C++ reference; `problems` receives a sentence for what could not be read, as do the
    gaps of `types`.
    """
    if kind is Kind.TENSOR:
        yield from tensor_holds(obj, problems)
    elif kind is Kind.GRAD_NODE:
        yield from node_holds(obj, types, words)
    elif kind is Kind.SAVED and SAVED_TENSORS_READABLE:
        yield from saved_holds(obj, "", types, words)
    elif kind is Kind.SAVED:
        problems.append(UNKNOWN_CONTENTS)


class Namespaces:
    """Address of each module's dict, refreshed when the number of modules changes.

    A missing or stale one only costs time: whatever is reached is alive.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._count = 0

    def addresses(self) -> Set[int]:
        """The addresses for all modules."""
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
        """The dicts of modules at these addresses."""
        for address in self.addresses() & addresses:
            for held in gc.get_referents(sys.modules.get(self._names[address])):
                if id(held) == address and _is_dict(held):
                    yield held


def _is_dict(held: Any) -> bool:
    return type(held) is dict


NAMESPACES = Namespaces()
"""The cache of this process."""


class WeakIdSet:
    """A set of objects, held weakly where possible; a grad node has no weak references and is identified by address."""

    __slots__ = ("_refs",)

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        self._refs = {id(obj): _weakly(obj) for obj in objects}

    @property
    def addresses(self) -> Set[int]:
        """Addresses of all of them."""
        return self._refs.keys()

    def has(self, obj: Any) -> bool:
        """Whether the object is in the set, and not a new one at the address of a freed one."""
        ref = self._refs.get(id(obj), _gone)
        return ref is None or ref() is obj

    def any_gone(self) -> bool:
        """Whether one of them is known to be freed."""
        return any(ref is not None and ref() is None for ref in self._refs.values())


def _gone() -> None:
    """Placeholder for a dead weak reference."""


def _weakly(obj: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(obj)
    except TypeError:
        return None


Mark = list[None]
"""The youngest object. As long as it is in the youngest generation, so is every later object, since collections and
`gc.freeze()` move a generation as a whole (CPython Modules/gcmodule.c).
"""
_YOUNG = (0, 1)
"""Generations that an object passes before the oldest one."""
_COUNT = 0xFFFFFFFF
"""Bits of an object's first word that hold the reference count; newer Pythons store flags in the others."""


class Tensors:
    """Addresses of what keeps tensor memory alive from Python: tensors, grad nodes, saved tensors, storages.

    No reference is kept, not even a weak one (`torch.utils.swap_tensors` refuses a tensor with weak references): an
    address stays known until memory shows that its object is gone.
    """

    def __init__(self) -> None:
        self.known: set[int] = set()
        """All that existed at the last update; some may be gone."""
        self.new: set[int] = set()
        """All recent objects, tensors or not."""
        self.storages: set[int] = set()
        """Known addresses of Python objects of storages."""
        self.mark: Mark | None = None
        self._kinds: set[int] = set()
        """Types that the known ones have had."""

    def take_up(self, full: bool = False) -> set[int] | None:
        """Update to the current objects after a young or full collection, and set a new mark.

        Returns the known ones created since the last mark; None if gc had moved the mark to an older generation, so
        that all had to be read.
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
        """Add the objects created since the mark. Returns as `take_up`."""
        youngest, places = listed(_YOUNG[0])
        self.new |= places
        if mark is not None and id(mark) in places:
            return self._add(youngest)
        youngest.clear()
        self.scan()
        return None

    def draw_line(self) -> None:
        """Set a new mark without collecting."""
        self.mark = []

    def scan(self) -> None:
        """Update from all objects that gc lists."""
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
        """Drop those that memory shows to be gone; return the others.

        A live object has a positive reference count, and deallocation leaves 0 (CPython Objects/object.c); freed or
        reused memory does not show such a type.
        """
        kinds = self._kinds | _subclasses(TensorBase)  # an object's class may have been changed
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
    """Addresses of a type and all its subclasses."""
    waiting, seen = [kind], {id(kind)}
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        inner = [other for other in subclasses if id(other) not in seen]
        seen.update(map(id, inner))
        waiting += inner
    return seen


_SEARCHED = 4_000
"""Objects searched without a hint, first near the block and then near any running frame. Heuristic: a few milliseconds
each.
"""
_MAX_READ = 5_000
"""Tensors and grad nodes whose C++ references are read. Heuristic: tens of milliseconds."""
_NEAREST = 3
"""Frames around the block that are searched first. Heuristic."""


class Walk:
    """Walks from modules and running frames to the `wanted` objects.

    All objects are given by address. `paths` led to wanted ones before, and `new` objects may do so now; `storages` are
    wanted objects that are Python storages. `alive` selects the wanted ones that still exist, and `enough` says whether
    they need no search. `one_by_one` records which paths led on; without it, all are followed at once, several times as
    fast.
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
        """Wanted objects not reached yet."""
        self.was_enough = False
        """Whether the missing ones needed no search."""
        self._wanted, self._hints, self._new, self._storages = wanted, paths, new, storages
        self._alive, self._enough = alive, enough
        self._namespaces = NAMESPACES.addresses()
        """Followed only where a hint names them."""
        self._on_paths: set[int] | None = (self.missing | paths) - self._namespaces
        """While only known paths are followed: what may be on them."""
        self._above: dict[int, int] = {}
        """Address of each object reached, mapped to its predecessor; 0 for a root."""
        self.one_by_one = one_by_one
        self._named: deque[Any] = deque()
        """Reached and named by a hint, not followed yet."""
        self._arrays: deque[Any] = deque()
        """The ones among them that gc does not traverse."""
        self._others: deque[Any] = deque()
        self._tensors: deque[Any] = deque()
        """Reached objects with memory in C++, not followed yet; few of them hold Python objects."""
        self._unread: deque[Any] = deque()
        """The ones among them whose C++ references are unread."""
        self._stored: list[Any] = []
        """The ones among them whose storage object is unread."""
        self._reads_left = min(_MAX_READ, deepest_walk())
        """Remaining number of objects to read."""
        self._words: Words
        self._types = Types()
        self._kind = TypeCache(KINDS.of).of

    def run(self, frames: list[FrameType], values: Collection[Any] = ()) -> None:
        """Walk until nothing is missing or the limits are reached; `frames` are running, innermost first, and `values`
        are roots that are not followed.
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
        """Walk again through new objects, then through objects without a hint."""
        self._let_go()
        self._on_paths, self._hints, self._above, self.one_by_one = None, self._hints | self._new, {}, True
        self._reads_left = min(_MAX_READ, deepest_walk())
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
        for waiting in (self._named, self._arrays, self._others, self._tensors, self._unread, self._stored):
            waiting.clear()

    def paths(self) -> set[int]:
        """Addresses on one path from a root to each wanted object reached; without `one_by_one`, on every path."""
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
        """Start at these frames, values and hinted namespaces, and follow the hints."""
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
        """Follow all hinted objects, then read C++ references, as long as anything is missing."""
        while self.missing:
            if self._named:
                self._go_through_all(self._named)
            elif self._arrays:
                self._go_through(self._arrays.popleft())
            elif self._stored:
                self._read_storages()
            elif self._tensors:
                self._go_through_all(self._tensors)
            elif self._unread and self._reads_left:
                self._reads_left -= 1
                obj = self._unread.popleft()
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
        if self._kind(type(obj)) is Kind.ARRAY:
            self._reach_all([*untracked_referents(obj)], id(obj))

    def _reach_all(self, objects: Collection[Any], above: int) -> None:
        """Reach all of these, or those that may be on a path; most lead nowhere and are filtered in C."""
        if self._on_paths is None:
            for obj in objects:
                if id(obj) not in self._namespaces:
                    self._reach(obj, above)
        elif near := self._on_paths.intersection(map(id, objects)):
            self._on_paths -= near
            self.missing -= near
            self._above |= dict.fromkeys(near, above)
            alike: dict[int, list[Any]] = {}
            for obj in {id(obj): obj for obj in objects if id(obj) in near}.values():
                alike.setdefault(id(type(obj)), []).append(obj)
            for several in alike.values():
                self._await(self._kind(type(several[0])), several)

    def _read_storages(self) -> None:
        stored, self._stored = self._stored, []
        if not self.missing.isdisjoint(self._storages):  # reading it would create one
            # `storage_object` without its own guard: the walk has one
            self.missing.difference_update(map(id, map(TensorBase.untyped_storage, filter(has_storage, stored))))

    def _held_in_native(self, obj: Any) -> Iterator[Any]:
        kind = self._kind(type(obj))
        if kind is Kind.TENSOR:
            yield from (part for _, part in sparse_parts(obj))
        yield from (held.target for held in held_in_native(obj, kind, self._types, [], self._words))

    def _reach(self, obj: Any, above: int) -> None:
        address = id(obj)
        if address in self._above:
            return
        kind, named = self._kind(type(obj)), address in self._hints
        if kind is Kind.LEAF and not named:
            return
        self._above[address] = above
        self.missing.discard(address)
        if named or kind >= Kind.TENSOR:
            self._await(kind, (obj,))
        else:
            self._others.append(obj)

    def _await(self, kind: Kind, objects: Sequence[Any]) -> None:
        """Queue these objects, all of one kind, which are wanted or hinted."""
        if kind < Kind.TENSOR:
            (self._arrays if kind is Kind.ARRAY else self._named).extend(objects)
            return
        self._tensors.extend(objects)
        if kind is Kind.TENSOR:
            self._stored.extend(objects)
        if kind is not Kind.STORAGE:
            self._unread.extend(objects)


def retained_upper_bound(doubtful: Iterable[Any]) -> int | None:
    """Upper bound on the bytes that tensors, grad nodes and storages reach through C++.

    Garbage that holds memory is among the doubtful objects, or C++ holds the memory for one that is, so no more than
    this is freed with it. None if this torch does not show all C++ references, or there are too many.
    """
    if lacks(RecordingPart.NATIVE):
        return None
    types, problems, storages = Types(), list[str](), dict[int, int]()
    reached = {id(obj): obj for obj in doubtful}
    waiting, most = [*reached.values()], min(_MAX_READ, deepest_walk())
    with without_functions(), own_memory() as words:
        while waiting and len(reached) <= most:
            obj = waiting.pop()
            storages |= _storages(obj)
            for held in held_in_native(obj, KINDS.of(type(obj)), types, problems, words):
                if held.target is None and not held.at:
                    return None
                if KINDS.of(type(held.target)) >= Kind.TENSOR and id(held.target) not in reached:
                    reached[id(held.target)] = held.target
                    waiting.append(held.target)
    return None if waiting or types.gaps or problems else sum(storages.values())


def _storages(obj: Any) -> dict[int, int]:
    """Map the address of each storage of a tensor or storage object to its bytes."""
    kind = KINDS.of(type(obj))
    if kind is Kind.STORAGE:
        return {} if is_meta(obj) else {int(address_of_storage(obj)): int(StorageBase.nbytes(obj))}
    if kind is not Kind.TENSOR:
        return {}
    address = storage_of(obj)
    if address is not None:
        return {address: storage_bytes(obj)}
    parts = ((storage_of(part), part) for _, part in sparse_parts(obj))
    return {at: storage_bytes(part) for at, part in parts if at is not None}


def garbage_among(heap: Liveness, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Unreachable objects of these types and their subclasses that lead to tensor memory.

    If all tensors are requested, memory without a tensor is reported as its storage object. Classes are compared by
    address: `isinstance` would run user code.
    """
    n, native = heap.native.references.objects, heap.native
    dead = heap.pruned.objects[heap.freed != REACHABLE]
    for k in dead[dead < n].tolist():
        bases = mro(type(native.sweep.objects[k]))
        if any(kind in bases for kind in kinds):
            yield native.sweep.objects[k]
    if not any(TensorBase in mro(kind)[:2] for kind in kinds):
        return
    for storage in (native.storages[k - n] for k in dead[dead >= n].tolist()):
        if not any(native.role[k] == Role.TENSOR for k in storage.holders):
            yield native.sweep.objects[storage.holders[0]]


_OURS = tuple(
    f"leakscope.{name}" for name in ("comm", "dataloader", "heap", "process", "profiler", "recorder", "testing")
)
"""Modules whose frames hold nothing of the program, or only while they run."""

_REEXAMINING_FACTOR = 1.5
"""Factor of followed paths over confirmed ones at which they are re-examined. Heuristic."""


class RetentionCheck:
    """Remembers, by address, what retains this process's tensors from one block to the next.

    Whatever is reached from a root is alive, however it was found, so a wrong address only costs time. A storage that a
    heap snapshot would find to be garbage has a tensor, grad node or storage object that is not reached.
    """

    def __init__(self) -> None:
        self._tensors = Tensors()
        self._paths: set[int] = set()
        """What led to tensors last time."""
        self._apart = 0
        """Number of paths when they were last re-examined."""
        self._garbage = WeakIdSet()
        """Uncollectable garbage that the heap snapshot before a block found."""
        self.left: dict[str, int] = {}
        """Bytes of the findings about that garbage, by fingerprint."""
        self.doubtful: set[int] = set()
        """What the last check did not find to be alive."""
        self.at_most = 0
        """Upper bound on the bytes left behind by a block that needed no heap snapshot."""

    def held_before(self, full: bool = False) -> bool:
        """Whether everything with memory is reachable, apart from that garbage, after a young or full collection."""
        since = self._tensors.take_up(full)
        if not self._stays(since):
            self._garbage, self.left = WeakIdSet(), {}
        return self._all_held(self._garbage.addresses)

    def begin(self) -> Mark | None:
        """Return the mark from which objects belong to the block."""
        return self._tensors.mark

    def set_baseline(self, left: dict[str, int], collect: bool = True) -> None:
        """Record the garbage that the snapshot before the block found; it made Python objects for those without one."""
        self.left = left
        if collect:
            self._tensors.take_up()
        else:
            self._tensors.scan()
            self._tensors.draw_line()

    def held_within(self) -> bool:
        """As `held_before`, for a nested block: what it has left behind stays, and nothing is collected."""
        mark = self._tensors.mark
        held = self.held_after(mark)
        self._tensors.draw_line()
        return held

    def held_after(self, mark: Mark | None, values: Collection[Any] = (), allowance: int = 0) -> bool:
        """Whether everything with memory is reachable after the block, up to this many bytes; `values` are known.

        `at_most` receives the bound.
        """
        since = self._tensors.take_since(mark)
        stays = since is not None and self._stays(since)
        return self._all_held(self._garbage.addresses if stays else frozenset(), values, allowance)

    def was_garbage(self, obj: Any) -> bool:
        """Whether the snapshot before the block found this object to be uncollectable garbage."""
        return self._garbage.has(obj)

    def learn(self, heap: Liveness) -> None:
        """Learn from a heap snapshot what leads to tensors."""
        objects = heap.pruned.objects
        self._paths.update(heap.native.sweep.addresses[objects[objects < heap.native.references.objects]].tolist())

    def learn_before(self, heap: Liveness) -> None:
        """As `learn`, including existing garbage."""
        self.learn(heap)
        n, native = heap.native.references.objects, heap.native
        never = heap.pruned.objects[heap.freed == IMMORTAL]
        found = [native.sweep.objects[k] for k in never[never < n].tolist()]
        for storage in (native.storages[k - n] for k in never[never >= n].tolist()):
            # the Python object that the snapshot may have created is freed with it
            found.append(storage_object(tensor_over(native.sweep.objects[storage.holders[0]], storage.address)))
        self._garbage = WeakIdSet(found)

    def _stays(self, since: Set[int] | None) -> bool:
        """Whether all known garbage is still there and no new object has its address."""
        garbage = self._garbage
        return not garbage.any_gone() and (since is None or since.isdisjoint(garbage.addresses))

    def _all_held(self, but: Set[int], values: Collection[Any] = (), allowance: int = 0) -> bool:
        frames, tensors = _frames(), self._tensors
        self.at_most = 0
        walk = Walk(
            tensors.known - but,
            self._paths,
            tensors.new,
            tensors.storages,
            tensors.forget_the_dead,
            lambda missing: self._are_within(allowance, missing),
            one_by_one=len(self._paths) > _REEXAMINING_FACTOR * self._apart,
        )
        with no_automatic_gc(), without_functions():
            walk.run(frames, values)
        frames.clear()
        self.doubtful = tensors.forget_the_dead(walk.missing) if walk.missing else set()
        if not self.doubtful:
            self._paths = walk.paths()
            if walk.one_by_one:
                self._apart = len(self._paths)
        return not self.doubtful or walk.was_enough

    def _are_within(self, allowance: int, missing: Set[int]) -> bool:
        """Whether these can keep at most this many bytes alive; sets `at_most`."""
        objects = _objects_at(missing)
        most = None if objects is None else retained_upper_bound(objects)
        if most is None or most > allowance:
            return False
        self.at_most = most
        return True


def _objects_at(addresses: Set[int]) -> list[Any] | None:
    """The objects that gc lists at these addresses; None unless it lists all of them."""
    for generations in ((0,), ()):
        found = listed_at(addresses, *generations)
        if len(found) == len(addresses):
            return found
    return None


def _frames() -> list[FrameType]:
    """Running frames, those of this thread first; leakscope's own excluded."""
    frames, own = running_frames(), sys._getframe()
    here = next(place for place, frame in enumerate(frames) if frame is own)
    found = [frame for frame in (*frames[here:], *frames[:here]) if not _is_ours(frame)]
    frames.clear()  # a list that holds the frame that holds it would outlive this call
    del own
    return found


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(_OURS)


RETENTION_CHECK = RetentionCheck()
"""The instance of this process."""
