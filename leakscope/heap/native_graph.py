"""References that only C++ holds, added to the sweep, and objects that changed during it."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import Ints, ReferenceKind
from leakscope.graph.walks import ReferrerIndex, in_rows
from leakscope.heap.address_index import LIST_BASELINE, Growing, Places, dicts_of, in_own_pages
from leakscope.heap.autograd import (
    NativeReference,
    Role,
    Types,
    Words,
    node_holds,
    operands_of,
    own_memory,
    replays,
    role_of,
    saved_holds,
    tensor_holds,
)
from leakscope.heap.referents import FRAMES_CAN_BE_READ, frame_contents
from leakscope.heap.storages import is_meta, sparse_parts, storage_bytes, storage_of, storage_uses
from leakscope.heap.sweep import Sweep, completed, take_back
from leakscope.originals import gc, referents_in_c, resource
from leakscope.process.gc_control import check_deadline
from leakscope.process.raw_types import container_base, is_leakscopes
from leakscope.process.torch_compat import (
    SAVED_TENSOR,
    SAVED_TENSORS_READABLE,
    RecordingPart,
    StorageBase,
    address_of_storage,
    address_of_tensor,
    has_storage,
    lacks,
    storage_address,
    uses_of_storage,
    uses_of_tensor,
    without_functions,
)

ROLE = 3
"""Bits of a type's flags that contain the `Role`."""
GAINING = 4
"""Flag: objects of the type are containers that can gain items."""
OURS = 8
"""Flag: the type belongs to leakscope."""


@dataclass(frozen=True, slots=True)
class _TypeFlags:
    """Flags of types, sorted by address, in mapped pages.

    A dict of them would take half a MiB of malloc, which would show up in the program's memory count. It is replaced as
    a whole, because an exception of the script may interrupt whatever builds the next one.
    """

    addresses: Ints
    flags: Ints
    types: tuple[weakref.ref[type], ...]
    """Drop freed types, whose address may belong to another type.

    Uses the weak reference that a class already has in its base's list of subclasses (CPython Objects/typeobject.c,
    add_subclass); none is created. The bases of a type never change, nor does the layout of its objects.
    """

    def only(self, places: Sequence[int]) -> _TypeFlags:
        """The types at these positions, in this order."""
        return _TypeFlags(
            in_own_pages(self.addresses[places]),
            in_own_pages(self.flags[places]),
            tuple(self.types[place] for place in places),
        )

    def and_also(self, types: Mapping[int, type]) -> _TypeFlags:
        """These and further judged types, by their addresses."""
        both = _TypeFlags(
            np.append(self.addresses, np.fromiter(types, np.int64, len(types))),
            np.append(self.flags, [_judge(kind) for kind in types.values()]),
            (*self.types, *map(weakref.ref, types.values())),
        )
        return both.only(np.argsort(both.addresses).tolist())


_known = _TypeFlags(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), ())


def flags_of_types(kinds: Iterable[type]) -> NDArray[np.int8]:
    """The flags of each of these types."""
    global _known  # noqa: PLW0603 - one for the process, whose types they are
    known = _known
    alive = [place for place, kind in enumerate(known.types) if kind() is not None]
    if len(alive) < len(known.types):
        known = known.only(alive)
    wanted = list(kinds)
    addresses = np.fromiter(map(id, wanted), np.int64, len(wanted))
    new = {int(addresses[k]): wanted[k] for k in np.flatnonzero(~np.isin(addresses, known.addresses)).tolist()}
    if new:
        known = known.and_also(new)
    _known = known
    return known.flags[np.searchsorted(known.addresses, addresses)].astype(np.int8)


def _judge(kind: type) -> int:
    return role_of(kind) | GAINING * (container_base(kind) is not None) | OURS * is_leakscopes(kind)


_STACK_PER_NODE = 800
"""Bytes of stack allowed for freeing one grad node of a chain: three times the observed value, where 8 MiB overflowed
at 30,000 to 45,000 nodes without leakscope (torch 2.13).
"""
_SPARSE_IMPL = 48
"""Words read of the TensorImpl of a sparse tensor; its parts follow the common fields, about 24 words."""
_MIN_DEPTH = 100
"""Minimum depth of the walk, on the smallest of stacks."""
_UNBOUNDED = 1 << 40
"""A depth that no memory can hold."""


_BETWEEN = 256
"""Objects between two checks of the deadline. Heuristic."""
_TENSOR, _GRAD_NODE, _STORAGE = Role.TENSOR, Role.GRAD_NODE, Role.STORAGE  # bound once: the walk visits every object


@dataclass(frozen=True)
class CppReferences:
    """References beyond those that CPython's traversal reports, in columns."""

    holder: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    kind: list[ReferenceKind] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    python: list[int] = field(default_factory=list)
    """Python references each accounts for; 0 if C++ owns the C++ object."""

    def add(self, holder: int, held: int, kind: ReferenceKind, name: str, python: int) -> None:
        """Add one reference, between indexes, while the columns are being read."""
        self.holder.append(holder)
        self.held.append(held)
        self.kind.append(kind)
        self.name.append(name)
        self.python.append(python)

    def __add__(self, other: CppReferences) -> CppReferences:
        columns = ("holder", "held", "kind", "name", "python")
        return CppReferences(*(getattr(self, name) + getattr(other, name) for name in columns))


@dataclass(frozen=True)
class Storage:
    """One storage, its owners and bytes."""

    address: int
    bytes: int
    holders: list[int]
    """Indexes of its tensors and Python storage objects."""


@dataclass(frozen=True, slots=True)
class References:
    """References of the heap in columns."""

    holder: Places
    held: Places
    python: Places
    """Python references that each entry accounts for; 0 if C++ owns the C++ object."""
    extra: Places
    """Index into the `CppReferences`, -1 if CPython's traversal reported it and for those to storages."""
    seen: NDArray[np.bool_]
    """Whether gc's own traversal reports the entry."""

    def at(self, places: NDArray[Any]) -> References:
        """The references at these positions."""
        return References(
            self.holder[places], self.held[places], self.python[places], self.extra[places], self.seen[places]
        )


def together(parts: list[References]) -> References:
    """Concatenate references."""
    names = ("holder", "held", "python", "extra", "seen")
    return References(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _plain(holder: Places, held: Places) -> References:
    count = len(holder)
    ones, none = np.ones(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
    return References(holder, held, ones, none, np.ones(count, dtype=bool))


@dataclass(frozen=True)
class ReferenceTable:
    """All references of the heap. Objects are numbered as in the sweep; storages follow."""

    objects: int
    """Number of Python objects; the indexes of storages start here."""
    count: int
    """Number of objects and storages."""
    role: NDArray[np.int8]
    """Role of each object."""
    swept: ReferrerIndex
    """References that the sweep found."""
    further: References
    """All others, by referent."""
    twice: Places
    """Referents of those that `swept` and `further` both have."""

    def into(self, objects: NDArray[np.integer]) -> References:
        """Every reference to one of these objects or storages."""
        holder, held = self.swept.into(objects)
        twice = _shown_by_cpp(self.role, holder, held)
        if twice.any():
            holder, held = holder[~twice], held[~twice]
        first, last = (np.searchsorted(self.further.held, objects, side) for side in ("left", "right"))
        return together([_plain(holder, held), self.further.at(in_rows(first, last - first))])


def _shown_by_cpp(role: NDArray[np.int8], holder: Places, held: Places) -> NDArray[np.bool_]:
    """Which references from a tensor or node to a node are C++ references that gc reports and that `CppReferences`
    include.
    """
    to_node: NDArray[np.bool_] = role[held] == Role.GRAD_NODE
    of = role[holder[to_node]]
    to_node[to_node] = (of == Role.TENSOR) | (of == Role.GRAD_NODE)
    return to_node


@dataclass(frozen=True, eq=False)
class NativeGraph:
    """The sweep and what only C++ holds: the second phase of a snapshot."""

    sweep: Sweep
    """All objects, including those found since the sweep."""
    types: Types
    flags: NDArray[np.int8]
    """The flags of each type of the sweep."""
    role: NDArray[np.int8]
    """Role of each object."""
    extra: CppReferences
    storages: tuple[Storage, ...]
    replayed: frozenset[int]
    """Tensors that functions of a view hold and nothing lists: the base and intermediate views."""
    running: Mapping[int, str]
    """Index of each running frame, mapped to its function's name."""
    problems: tuple[str, ...]
    """What could not be read, in sentences."""
    hides: bool
    """Whether some C++ references cannot be read."""
    referrers: ReferrerIndex
    """The references that the sweep found, by referent."""
    _of_new: tuple[Places, Places]
    """(referrer, referent) that CPython's traversal reports for objects found since the sweep."""
    _known: Mapping[int, int]
    """Address of each object that is not in the sweep's index, or was visited, mapped to its index."""

    @cached_property
    def references(self) -> ReferenceTable:
        """All references."""
        role, extra, n = self.role, self.extra, len(self.role)
        swept_holder, swept_held = self.referrers.into(np.flatnonzero(role == Role.GRAD_NODE))
        twice = _shown_by_cpp(role, swept_holder, swept_held)
        new_holder, new_held = self._of_new
        new_twice = _shown_by_cpp(role, new_holder, new_held)
        shown = _pairs(
            np.append(swept_holder[twice], new_holder[new_twice]), np.append(swept_held[twice], new_held[new_twice]), n
        )
        holder, held = np.asarray(extra.holder, dtype=np.int32), np.asarray(extra.held, dtype=np.int32)
        of_cpp = References(
            holder,
            held,
            np.asarray(extra.python, dtype=np.int32),
            np.arange(len(holder), dtype=np.int32),
            np.isin(_pairs(holder, held, n), shown),
        )
        further = together([_plain(new_holder[~new_twice], new_held[~new_twice]), of_cpp, self._to_storages()])
        by_held = further.at(np.argsort(further.held, kind="stable"))
        return ReferenceTable(n, n + len(self.storages), role, self.referrers, by_held, swept_held[twice])

    def _to_storages(self) -> References:
        holders = [storage.holders for storage in self.storages]
        lengths = np.fromiter(map(len, holders), np.int64, len(holders))
        holder = np.fromiter(chain.from_iterable(holders), np.int32, int(lengths.sum()))
        held = (np.repeat(np.arange(len(holders)), lengths) + len(self.role)).astype(np.int32)
        nothing, none = np.zeros(len(holder), dtype=np.int32), np.full(len(holder), -1, dtype=np.int32)
        return References(holder, held, nothing, none, np.zeros(len(holder), dtype=bool))

    def of_type(self, kind: type) -> Ints:
        """Indexes of the objects of exactly this type."""
        for number in np.flatnonzero(self.sweep.type_list == id(kind)).tolist():
            return np.flatnonzero(self.sweep.type_index == number)
        return np.zeros(0, dtype=np.int64)

    def find(self, address: int) -> int:
        """Index of the object at an address, -1 if it is not in the graph."""
        index = self._known.get(address)
        return self.sweep.address_book.find_one(address) if index is None else index

    def find_all(self, addresses: list[int]) -> list[int]:
        """Index of the object at each address, -1 if it is not in the graph."""
        swept = self.sweep.address_book.find(np.array(addresses, dtype=np.int64)).tolist()
        return [at if at >= 0 else self._known.get(address, -1) for at, address in zip(swept, addresses, strict=True)]


def _pairs(holder: Places, held: Places, n: int) -> Ints:
    return holder.astype(np.int64) * n + held


def read_native_graph(
    heap: Sweep,
    frames: Sequence[FrameType],
    growing: Growing | None = None,
    comm_holds: Iterable[tuple[Any, Any, str]] = (),
) -> NativeGraph:
    """Read what only C++ holds, and the variables and operands of the running frames.

    `growing` selects the untracked dicts that are wanted. `comm_holds` are owners in C++ known to the comm monitor:
    (Work, tensor, name of the reference).
    """
    walk = _Walk(heap)
    for holder, held, name in comm_holds:
        walk.extra.add(walk.index_of(holder), walk.index_of(held), ReferenceKind.COMM, name, 0)
    walk.walk()
    check_deadline()
    running = walk.read_frames(frames, growing)
    return walk.result(running)


class _Walk:
    """The walk through C++ references; what it finds beside the sweep is appended to the sweep's objects."""

    def __init__(self, heap: Sweep) -> None:
        self._sweep, self._objects = heap, heap.objects
        self._types = Types()
        self.extra = CppReferences()
        self._storages: dict[int, Storage] = {}
        self._replayed: set[int] = set()
        self._views: dict[int, list[tuple[int, bool]]] = {}
        """Base, mapped to its views, each with whether C++ keeps functions with it."""
        self._problems: list[str] = []
        self._hides = lacks(RecordingPart.NATIVE)
        self._sparse: list[tuple[int, str, int]] = []
        """(sparse tensor, name, storage) of the parts that C++ keeps in tensors of its own."""
        self._hollow: set[int] = set()
        """Storages of wrapper subclasses and fake tensors, which have a size but own no memory."""
        self._first_new = len(heap.objects)
        untracked = range(heap.tracked, self._first_new)
        self._known: dict[int, int] = {id(heap.objects[k]): k for k in untracked}
        self._swept = ReferrerIndex(self._first_new, heap.holder, heap.held)
        self._flags = _flags_of_each(heap, 0)

    def walk(self) -> None:
        """Walk the C++ references of every tensor and grad node, without recursion."""
        with without_functions(), own_memory() as words:
            walked = (self._flags & ROLE > 0) | (SAVED_TENSORS_READABLE & (self._sweep.type_list == id(SAVED_TENSOR)))
            special = np.flatnonzero(walked[self._sweep.type_index])
            self._known.update(zip(self._sweep.addresses[special].tolist(), special.tolist(), strict=True))
            waiting = special.tolist() + list(range(self._first_new, len(self._objects)))
            deepest = deepest_walk()
            for _ in range(deepest):
                if not waiting:
                    break
                waiting = self._visit(waiting, words)
                check_deadline()
            if waiting:
                self._problems.append(
                    f"an autograd graph more than {deepest} references deep was not walked to its end; "
                    "what lies behind is unexplained"
                )
            self._replay_views()
            self._join_parts(words)
            for address in self._hollow:  # their Python storage objects, found by the sweep, own nothing either
                self._storages.pop(address, None)

    def read_frames(self, frames: Sequence[FrameType], growing: Growing | None) -> dict[int, str]:
        """Read locals and operands of running frames; return the index of each frame with its function's name.

        CPython reports nothing for a running frame (`frame_traverse` skips what the interpreter owns).
        """
        with own_memory() as words:
            operands = [operands_of(frame, words) for frame in frames]
        if not FRAMES_CAN_BE_READ:
            self._problems.append("the variables of running functions cannot be read in this build of Python")
        let_go = self._sweep.let_go
        running: dict[int, str] = {}
        for frame, addresses in zip(frames, operands, strict=True):
            check_deadline()
            index = self.index_of(frame)
            running[index] = frame.f_code.co_qualname
            for at in filter(lambda at: at >= 0, (let_go.get(at, self._find(at)) for at in addresses)):
                self.extra.add(index, at, ReferenceKind.OPERAND, "an operand", 1)
            for name, value in _variables_of(frame):
                at = self._find(id(value))
                if at < 0 and type(value) is tuple and not self._sweep.alone and gc.is_tracked(value):
                    at = self.index_of(value)  # held by the frame: nobody is filling it
                if at < 0 and growing is not None and type(value) is dict and value and len(growing(dicts_of([value]))):
                    at = self.index_of(value)
                if at >= 0:
                    kind = ReferenceKind.ATTRIBUTE if name == _NAMESPACE else ReferenceKind.LOCAL
                    self.extra.add(index, at, kind, name, 1)
                del value
        return running

    def result(self, running: Mapping[int, str]) -> NativeGraph:
        """The graph, with CPython's references of the objects found beside the sweep."""
        holders: list[int] = []
        helds: list[int] = []
        for k in range(self._first_new, len(self._objects)):
            for referent in gc.get_referents(self._objects[k]):
                at = self._find(id(referent))
                if at >= 0:
                    holders.append(k)
                    helds.append(at)
                del referent
        heap = completed(self._sweep)
        flags = np.append(self._flags, _flags_of_each(heap, len(self._flags)))
        return NativeGraph(
            sweep=heap,
            types=self._types,
            flags=flags,
            role=(flags & ROLE)[heap.type_index],
            extra=self.extra,
            storages=tuple(self._storages.values()),
            replayed=frozenset(self._replayed),
            running=running,
            problems=(*self._problems, *self._types.gaps),
            hides=self._hides,
            referrers=self._swept,
            _of_new=(np.asarray(holders, dtype=np.int32), np.asarray(helds, dtype=np.int32)),
            _known=self._known,
        )

    def _visit(self, indexes: list[int], words: Words) -> list[int]:
        start = len(self._objects)
        for count, index in enumerate(indexes):
            if count % _BETWEEN == 0:
                check_deadline()
            obj = self._objects[index]
            role = self._types.role(type(obj))
            if role is _TENSOR:
                self._note_storage(index, obj)
                for held in tensor_holds(obj, self._problems):
                    self._note(index, held)
                    if held.name == "._base":
                        view = index, replays(obj, held.target)
                        self._views.setdefault(self.index_of(held.target), []).append(view)
            elif role is _GRAD_NODE:
                for held in node_holds(obj, self._types, words):
                    self._note(index, held)
            elif SAVED_TENSORS_READABLE and type(obj) is SAVED_TENSOR:
                for held in saved_holds(obj, "saved tensor", self._types, words):
                    self._note(index, held)
            elif role is _STORAGE and not is_meta(obj):
                self._add_holder(index, int(address_of_storage(obj)), obj, _nbytes)
        return list(range(start, len(self._objects)))

    def _replay_views(self) -> None:
        """Join views that are held only by the functions of another view of the same base to that view."""
        views = {k: v for k, v in self._views.items() if any(replaying for _, replaying in v)}
        if not views:
            return
        known = Counter(held for held, python in zip(self.extra.held, self.extra.python, strict=True) if python == 0)
        for base, members in views.items():
            unseen = {index for index, _ in members if uses_of_tensor(self._objects[index]) - 1 > known[index]}
            holders = [index for index, replaying in members if replaying and index not in unseen]
            if holders:
                self._replayed |= {base, *unseen}
                for holder in holders:
                    for index in unseen:
                        self.extra.add(holder, index, ReferenceKind.MEMORY, "._view_func", 0)

    def _note(self, index: int, held: NativeReference) -> None:
        holder = index if held.of is None else self.index_of(held.of)
        at = self.index_of(held.target) if held.target is not None else self._find(held.at)
        if at >= 0:
            self.extra.add(holder, at, held.kind, held.name, held.python)
        elif held.target is None and not held.at:
            self._hides = True

    def _note_storage(self, index: int, tensor: Any) -> None:
        address = storage_of(tensor)
        if address is not None:
            self._add_holder(index, address, tensor, storage_bytes)
        elif has_storage(tensor):
            self._hollow.add(int(storage_address(tensor)))
        else:
            for name, part in sparse_parts(tensor):
                address = storage_of(part)
                if uses_of_tensor(part) > 1:  # the tensor's own
                    self.extra.add(index, self.index_of(part), ReferenceKind.ATTRIBUTE, name, 0)
                elif address is not None:
                    self._add_holder(index, address, part, storage_bytes)
                    self._sparse.append((index, name, address))

    def _join_parts(self, words: Words) -> None:
        """Join the tensors from which a sparse one was made to it: C++ keeps these and hands out other tensors over the
        same memory (`SparseCsrTensorImpl::set_member_tensors` in aten/src/ATen/SparseCsrTensorImpl.cpp).
        """
        for index, name, address in self._sparse:
            kept = words(int(address_of_tensor(self._objects[index])), _SPARSE_IMPL)
            for part in self._storages[address].holders if address in self._storages else ():
                obj = self._objects[part]
                if part != index and self._types.role(type(obj)) is _TENSOR and int(address_of_tensor(obj)) in kept:
                    self.extra.add(index, part, ReferenceKind.ATTRIBUTE, name, 0)

    def _add_holder(self, index: int, address: int, obj: Any, size: Callable[[Any], int]) -> None:
        entry = self._storages.get(address)
        if entry is None:
            entry = self._storages[address] = Storage(address, size(obj), [])
        entry.holders.append(index)

    def _find(self, address: int) -> int:
        index = self._known.get(address)
        return self._sweep.address_book.find_one(address) if index is None else index

    def index_of(self, obj: Any) -> int:
        """Index of an object, added to the graph if new."""
        index = self._find(id(obj))
        if index < 0 and type(obj) is tuple:
            index = take_back(self._sweep, obj)
        if index < 0:
            index = len(self._objects)
            self._objects.append(obj)
        self._known[id(obj)] = index
        return index


def _flags_of_each(heap: Sweep, first: int) -> NDArray[np.int8]:
    """Flags of the sweep's types, starting at this one."""
    one_of_each = map(heap.objects.__getitem__, heap.type_first[first:].tolist())
    return flags_of_types(map(type, one_of_each))


def deepest_walk() -> int:
    """Maximum depth of the walk: torch frees a chain of nodes with Python objects recursively."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _UNBOUNDED if soft == resource.RLIM_INFINITY else max(soft // _STACK_PER_NODE, _MIN_DEPTH)


def _nbytes(storage: Any) -> int:
    return int(StorageBase.nbytes(storage))


_NAMESPACE = ".f_locals"


def _variables_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Referents of a frame by name; a module's namespace is excluded, it is a root of its own."""
    contents = frame_contents(frame)
    for name, value in contents.variables:
        yield f"local {name}", value
    if contents.namespace is not None and contents.namespace is not frame.f_globals:
        yield _NAMESPACE, contents.namespace


def uses_of_storages(native: NativeGraph) -> Ints:
    """Number of C++ owners of each storage, -1 if its tensor has since exchanged it for another.

    A storage without owners must not be read: its memory may be reused. Storages of tensors are read through their
    tensors, in one C call, during which no other thread runs.
    """
    objects, tensors, places = native.sweep.objects, [], []
    uses = np.zeros(len(native.storages), dtype=np.int64)
    for place, storage in enumerate(native.storages):
        tensor = next((objects[k] for k in storage.holders if native.role[k] == Role.TENSOR), None)
        if tensor is None or not has_storage(tensor):  # a Python storage keeps it for good; a part of a sparse tensor
            uses[place] = storage_uses(storage.address)
        else:
            tensors.append(tensor)
            places.append(place)
    numbers = np.fromiter(
        chain(map(storage_address, tensors), map(uses_of_storage, map(storage_address, tensors))),
        np.int64,
        2 * len(tensors),
    )
    addresses = np.fromiter((storage.address for storage in native.storages), np.int64, len(native.storages))
    uses[places] = np.where(numbers[: len(tensors)] == addresses[places], numbers[len(tensors) :], -1)
    return uses


def changed(native: NativeGraph, indexes: Ints) -> Ints:
    """Which of some tracked objects have another reference count or other referents than at the sweep.

    Counts and references are read in one C call. An unchanged object still has the same referrers: if they are garbage,
    so is it. Tensors and grad nodes account for C++ references by the number of C++ owners, which includes a
    snapshot's; their count may differ by the one that stands for all of those.
    """
    sweep, many = native.sweep, len(indexes)
    objects = list(map(sweep.objects.__getitem__, indexes.tolist()))
    referents = referents_in_c(objects)
    numbers = np.fromiter(
        chain(
            map(sys.getrefcount, objects),
            map(len, map(referents, objects)),
            map(id, chain.from_iterable(map(referents, objects))),
        ),
        np.int64,
    )
    native_owners = native.role[indexes] > 0
    moved = np.abs(numbers[:many] - LIST_BASELINE - 1 - sweep.counts[indexes]) > native_owners
    held = sweep.address_book.find(numbers[2 * many :])
    holder = np.repeat(np.arange(many), numbers[many : 2 * many])[held >= 0]
    held = held[held >= 0]
    lengths = np.bincount(holder, minlength=many)
    before = sweep.starts[indexes + 1] - sweep.starts[indexes]
    other = lengths != before
    alike = ~other[holder]
    held_before = sweep.held[in_rows(sweep.starts[indexes], before)][np.repeat(~other, before)]
    other[holder[alike][held[alike] != held_before]] = True
    found: Ints = indexes[moved | (other & ~native_owners)]
    return found
