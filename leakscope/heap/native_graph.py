"""References that only C++ knows, added to the sweep, and objects that changed during it."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import Ints, ReferenceKind
from leakscope.graph.walks import ReferrerIndex, in_rows
from leakscope.heap.address_index import LIST_BASELINE, Growing, counts_of, dicts_of, in_own_pages
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
from leakscope.heap.sweep import Sweep, append, take_back
from leakscope.originals import gc, referents_in_c, resource
from leakscope.process.gc_control import check_deadline
from leakscope.process.raw_types import container_base, is_leakscopes
from leakscope.process.torch_compat import (
    SAVED_TENSOR,
    SAVED_TENSORS_TELL,
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
    verdicts: Ints
    types: tuple[weakref.ref[type], ...]
    """Drop freed types, whose address may belong to another type.

    Uses the weak reference that a class already has in its base's list of subclasses (CPython Objects/typeobject.c,
    add_subclass); none is created. The bases of a type never change, nor does the layout of its objects.
    """

    def only(self, places: Sequence[int]) -> _TypeFlags:
        """Those at these positions, in this order."""
        return _TypeFlags(
            in_own_pages(self.addresses[places]),
            in_own_pages(self.verdicts[places]),
            tuple(self.types[place] for place in places),
        )

    def and_also(self, types: Mapping[int, type]) -> _TypeFlags:
        """These and further judged types, by their addresses."""
        both = _TypeFlags(
            np.append(self.addresses, np.fromiter(types, np.int64, len(types))),
            np.append(self.verdicts, [_judge(kind) for kind in types.values()]),
            (*self.types, *map(weakref.ref, types.values())),
        )
        return both.only(np.argsort(both.addresses).tolist())


_known = _TypeFlags(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), ())


def verdicts_on(kinds: Iterable[type]) -> NDArray[np.int8]:
    """The flags of each of these types."""
    global _known  # noqa: PLW0603 - one for the process, whose types they are
    known = _known
    alive = [place for place, kind in enumerate(known.types) if kind() is not None]
    if len(alive) < len(known.types):
        known = known.only(alive)
    asked = list(kinds)
    addresses = np.fromiter(map(id, asked), np.int64, len(asked))
    new = {int(addresses[k]): asked[k] for k in np.flatnonzero(~np.isin(addresses, known.addresses)).tolist()}
    if new:
        known = known.and_also(new)
    _known = known
    return known.verdicts[np.searchsorted(known.addresses, addresses)].astype(np.int8)


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


@dataclass
class ExtraReferences:
    """References beyond CPython's own, in columns."""

    holder: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    kind: list[ReferenceKind] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    python: list[int] = field(default_factory=list)
    """Python references each accounts for; 0 if C++ owns the C++ object."""

    def add(self, holder: int, held: int, kind: ReferenceKind, name: str, python: int) -> None:
        """Add one reference, between indexes."""
        self.holder.append(holder)
        self.held.append(held)
        self.kind.append(kind)
        self.name.append(name)
        self.python.append(python)


@dataclass
class Storage:
    """One storage, its owners and bytes."""

    address: int
    bytes: int
    holders: list[int] = field(default_factory=list)
    """Indexes of its tensors and Python storage objects."""


class NativeReferences:
    """Adds C++ references to a sweep; indexes continue after those of the sweep."""

    def __init__(self, heap: Sweep) -> None:
        self.sweep = heap
        self.types = Types()
        self.extra = ExtraReferences()
        self.storages: dict[int, Storage] = {}
        self.replayed: set[int] = set()
        """Tensors that functions of a view hold and nothing lists: the base and intermediate views."""
        self._views: dict[int, list[tuple[int, bool]]] = {}
        """Base, mapped to its views, each with whether C++ keeps functions with it."""
        self.problems: list[str] = []
        self.hides = lacks(RecordingPart.NATIVE)
        """Whether some C++ references cannot be read."""
        self._sparse: list[tuple[int, str, int]] = []
        """(sparse tensor, name, storage) of the parts that C++ keeps in tensors of its own."""
        self._hollow: set[int] = set()
        """Storages of wrapper subclasses and fake tensors, which have a size but own no memory."""
        self.new: list[Any] = []
        """Objects found during the walk that are not in the sweep."""
        self._first_new = len(heap.objects)
        untracked = range(heap.tracked, self._first_new)
        self._known: dict[int, int] = {id(heap.objects[k]): k for k in untracked}
        self.held_by = ReferrerIndex(self._first_new, heap.holder, heap.held)
        """References of the sweep; `later` has those of objects added since."""
        self.later: tuple[list[int], list[int]] = [], []
        """(referrer, referent) that CPython's traversal reports for the new objects."""
        self.verdicts = self._judged(0)
        """For each type of the sweep its flags."""
        self.role: NDArray[np.int8] = (self.verdicts & ROLE)[heap.type_index]
        """Role of each object."""

    def walk(self) -> None:
        """Walk the C++ references of every tensor and grad node, without recursion."""
        with without_functions(), own_memory() as words:
            special = np.flatnonzero(self._is_walked()[self.sweep.type_index])
            self._known.update(zip(self.sweep.addresses[special].tolist(), special.tolist(), strict=True))
            waiting = special.tolist() + [self._first_new + k for k in range(len(self.new))]
            deepest = deepest_walk()
            for _ in range(deepest):
                if not waiting:
                    break
                waiting = self._visit(waiting, words)
                check_deadline()
            if waiting:
                self.problems.append(
                    f"an autograd graph more than {deepest} references deep was not walked to its end; "
                    "what lies behind is unexplained"
                )
            self._replay_views()
            self._join_parts(words)
            for address in self._hollow:  # their Python storage objects, found by the sweep, own nothing either
                self.storages.pop(address, None)
            self.read_new(0)
            self.problems += self.types.gaps

    def _is_walked(self) -> NDArray[np.bool_]:
        """For each type whether C++ holds something for its objects."""
        walked: NDArray[np.bool_] = (self.verdicts & ROLE > 0) | (
            SAVED_TENSORS_TELL & (self.sweep.type_list == id(SAVED_TENSOR))
        )
        return walked

    def _visit(self, indexes: list[int], words: Words) -> list[int]:
        start = len(self.new)
        for count, index in enumerate(indexes):
            if count % _BETWEEN == 0:
                check_deadline()
            obj = self._object(index)
            role = self.types.role(type(obj))
            if role is _TENSOR:
                self._note_storage(index, obj)
                for held in tensor_holds(obj, self.problems):
                    self._note(index, held)
                    if held.name == "._base":
                        self._views.setdefault(self.index_of(held.target), []).append(
                            (index, replays(obj, held.target))
                        )
            elif role is _GRAD_NODE:
                for held in node_holds(obj, self.types, words):
                    self._note(index, held)
            elif SAVED_TENSORS_TELL and type(obj) is SAVED_TENSOR:
                for held in saved_holds(obj, "saved tensor", self.types, words):
                    self._note(index, held)
            elif role is _STORAGE and not is_meta(obj):
                self._add_holder(index, int(address_of_storage(obj)), obj, _nbytes)
        return [self._first_new + k for k in range(start, len(self.new))]

    def _replay_views(self) -> None:
        """Join views that are held only by the functions of another view of the same base to that view."""
        views = {k: v for k, v in self._views.items() if any(replaying for _, replaying in v)}
        if not views:
            return
        known = Counter(held for held, python in zip(self.extra.held, self.extra.python, strict=True) if python == 0)
        for base, members in views.items():
            unseen = {index for index, _ in members if uses_of_tensor(self._object(index)) - 1 > known[index]}
            holders = [index for index, replaying in members if replaying and index not in unseen]
            if holders:
                self.replayed |= {base, *unseen}
                for holder in holders:
                    for index in unseen:
                        self.extra.add(holder, index, ReferenceKind.MEMORY, "._view_func", 0)

    def _object(self, index: int) -> Any:
        return self.sweep.objects[index] if index < self._first_new else self.new[index - self._first_new]

    def _note(self, index: int, held: NativeReference) -> None:
        holder = index if held.of is None else self.index_of(held.of)
        at = self.index_of(held.target) if held.target is not None else self.find(held.at)
        if at >= 0:
            self.extra.add(holder, at, held.kind, held.name, held.python)
        elif held.target is None and not held.at:
            self.hides = True

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
            kept = words(int(address_of_tensor(self._object(index))), _SPARSE_IMPL)
            for part in self.storages[address].holders if address in self.storages else ():
                obj = self._object(part)
                if part != index and self.types.role(type(obj)) is _TENSOR and int(address_of_tensor(obj)) in kept:
                    self.extra.add(index, part, ReferenceKind.ATTRIBUTE, name, 0)

    def _add_holder(self, index: int, address: int, obj: Any, size: Callable[[Any], int]) -> None:
        entry = self.storages.get(address)
        if entry is None:
            entry = self.storages[address] = Storage(address, size(obj))
        entry.holders.append(index)

    def of_type(self, kind: type) -> Ints:
        """Indexes of the objects of exactly this type."""
        for number in np.flatnonzero(self.sweep.type_list == id(kind)).tolist():
            return np.flatnonzero(self.sweep.type_index == number)
        return np.zeros(0, dtype=np.int64)

    def find(self, address: int) -> int:
        """Index of the object at an address, -1 if it is not in the graph."""
        index = self._known.get(address)
        if index is None:
            index = self.sweep.address_book.find_one(address)
        return index

    def index_of(self, obj: Any) -> int:
        """Index of an object, added to the graph if new."""
        index = self.find(id(obj))
        if index < 0 and type(obj) is tuple:
            index = take_back(self.sweep, obj)
        if index < 0:
            index = self._first_new + len(self.new)
            self.new.append(obj)
        self._known[id(obj)] = index
        return index

    def read_new(self, first: int) -> None:
        """Read CPython's references of the new objects, starting at this one."""
        holders, helds = self.later
        for k, obj in enumerate(self.new[first:], start=self._first_new + first):
            for referent in gc.get_referents(obj):
                at = self.find(id(referent))
                if at >= 0:
                    holders.append(k)
                    helds.append(at)

    def absorb_new(self) -> None:
        """Merge the new objects into those of the sweep."""
        new, self.new = self.new, []
        self._first_new += len(new)
        append(self.sweep, new, counts_of(new), (), ())
        self.verdicts = np.append(self.verdicts, self._judged(len(self.verdicts)))
        self.role = np.append(self.role, (self.verdicts & ROLE)[self.sweep.type_index[len(self.role) :]])

    def _judged(self, first: int) -> NDArray[np.int8]:
        """Flags of the sweep's types, starting at this one."""
        one_of_each = map(self.sweep.objects.__getitem__, self.sweep.type_first[first:].tolist())
        return verdicts_on(map(type, one_of_each))

    def places(self, addresses: list[int]) -> list[int]:
        """Index of the object at each address, -1 if it is not in the graph."""
        swept = self.sweep.address_book.find(np.array(addresses, dtype=np.int64)).tolist()
        return [at if at >= 0 else self._known.get(address, -1) for at, address in zip(swept, addresses, strict=True)]


def deepest_walk() -> int:
    """Maximum depth of the walk: torch frees a chain of nodes with Python objects recursively."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _UNBOUNDED if soft == resource.RLIM_INFINITY else max(soft // _STACK_PER_NODE, _MIN_DEPTH)


def _nbytes(storage: Any) -> int:
    return int(StorageBase.nbytes(storage))


def read_frames(native: NativeReferences, frames: list[FrameType], growing: Growing | None = None) -> dict[int, str]:
    """Add locals and operands of running frames; return the index of each frame with its function's name.

    `growing` selects the untracked dicts that are wanted. CPython reports nothing for a running frame (`frame_traverse`
    skips what the interpreter owns).
    """
    with own_memory() as words:
        operands = [operands_of(frame, words) for frame in frames]
    if not FRAMES_CAN_BE_READ:
        native.problems.append("the variables of running functions cannot be read in this build of Python")
    let_go = native.sweep.let_go
    first = len(native.new)
    running: dict[int, str] = {}
    for frame, addresses in zip(frames, operands, strict=True):
        check_deadline()
        index = native.index_of(frame)
        running[index] = frame.f_code.co_qualname
        for at in filter(lambda at: at >= 0, (let_go.get(at, native.find(at)) for at in addresses)):
            native.extra.add(index, at, ReferenceKind.OPERAND, "an operand", 1)
        for name, value in _variables_of(frame):
            at = native.find(id(value))
            if at < 0 and type(value) is tuple and not native.sweep.alone and gc.is_tracked(value):
                at = native.index_of(value)  # held by the frame: nobody is filling it
            if at < 0 and growing is not None and type(value) is dict and value and len(growing(dicts_of([value]))):
                at = native.index_of(value)
            if at >= 0:
                kind = ReferenceKind.ATTRIBUTE if name == _NAMESPACE else ReferenceKind.LOCAL
                native.extra.add(index, at, kind, name, 1)
            del value
    native.read_new(first)
    native.absorb_new()
    return running


_NAMESPACE = ".f_locals"


def _variables_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Referents of a frame by name; a module's namespace is excluded, it is a root of its own."""
    contents = frame_contents(frame)
    for name, value in contents.variables:
        yield f"local {name}", value
    if contents.namespace is not None and contents.namespace is not frame.f_globals:
        yield _NAMESPACE, contents.namespace


def uses_of_storages(native: NativeReferences) -> Ints:
    """Number of C++ owners of each storage, -1 if its tensor has since exchanged it for another.

    A storage without owners must not be read: its memory may be reused. Storages of tensors are read through their
    tensors, in one C call, during which no other thread runs.
    """
    objects, tensors, places = native.sweep.objects, [], []
    uses = np.zeros(len(native.storages), dtype=np.int64)
    for place, (address, storage) in enumerate(native.storages.items()):
        tensor = next((objects[k] for k in storage.holders if native.role[k] == Role.TENSOR), None)
        if tensor is None or not has_storage(tensor):  # a Python storage keeps it for good; a part of a sparse tensor
            uses[place] = storage_uses(address)
        else:
            tensors.append(tensor)
            places.append(place)
    told = np.fromiter(
        chain(map(storage_address, tensors), map(uses_of_storage, map(storage_address, tensors))),
        np.int64,
        2 * len(tensors),
    )
    addresses = np.fromiter(native.storages, np.int64, len(native.storages))
    uses[places] = np.where(told[: len(tensors)] == addresses[places], told[len(tensors) :], -1)
    return uses


def changed(native: NativeReferences, indexes: Ints) -> Ints:
    """Which of some tracked objects have another reference count or other referents than at the sweep.

    Counts and references are read in one C call. An unchanged object still has the same referrers: if they are garbage,
    so is it. Tensors and grad nodes account for C++ references by the number of C++ owners, which includes a
    snapshot's; their count may differ by the one that stands for all of those.
    """
    sweep, many = native.sweep, len(indexes)
    objects = list(map(sweep.objects.__getitem__, indexes.tolist()))
    referents = referents_in_c(objects)
    told = np.fromiter(
        chain(
            map(sys.getrefcount, objects),
            map(len, map(referents, objects)),
            map(id, chain.from_iterable(map(referents, objects))),
        ),
        np.int64,
    )
    native_owners = native.role[indexes] > 0
    moved = np.abs(told[:many] - LIST_BASELINE - 1 - sweep.counts[indexes]) > native_owners
    held = sweep.address_book.find(told[2 * many :])
    holder = np.repeat(np.arange(many), told[many : 2 * many])[held >= 0]
    held = held[held >= 0]
    lengths = np.bincount(holder, minlength=many)
    before = sweep.starts[indexes + 1] - sweep.starts[indexes]
    other = lengths != before
    alike = ~other[holder]
    held_before = sweep.held[in_rows(sweep.starts[indexes], before)][np.repeat(~other, before)]
    other[holder[alike][held[alike] != held_before]] = True
    found: Ints = indexes[moved | (other & ~native_owners)]
    return found
