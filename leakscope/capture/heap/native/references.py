"""Which references does no Python traversal show? Walked from tensors into autograd's C++ graph and back."""

from __future__ import annotations

import gc
import resource
from collections import Counter
from dataclasses import dataclass, field
from types import CellType, FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leakscope.capture.heap.native.autograd import (
    SAVED_TENSOR,
    Held,
    Role,
    Types,
    node_holds,
    replays,
    saved_holds,
    tensor_holds,
)
from leakscope.capture.heap.native.raw_memory import Words, operands_of, own_memory
from leakscope.capture.heap.native.storages import (
    StorageBase,
    TensorBase,
    has_storage,
    is_meta,
    sparse_parts,
    storage_address,
    storage_bytes,
    storage_of,
)
from leakscope.capture.heap.python.address_book import Ints
from leakscope.capture.heap.python.code_referents import frame_locals
from leakscope.capture.heap.python.columns import Growing, counts_of, dicts_of
from leakscope.capture.heap.python.gc_heap import Sweep, append
from leakscope.capture.heap.raw_types import container_base
from leakscope.graph.model import ReferenceKind

_STACK_PER_NODE = 800
"""Bytes of stack reckoned for freeing one grad node of a chain: three times what was seen, as 8 MiB of it overflowed
at 30,000 to 45,000 nodes with no look involved (torch 2.13)."""
_MIN_DEPTH = 100
"""References that the walk goes deep on the smallest of stacks."""
_UNBOUNDED = 1 << 40
"""References: more than fit into any memory."""


_TENSOR, _GRAD_NODE, _STORAGE = Role.TENSOR, Role.GRAD_NODE, Role.STORAGE  # bound once: the walk asks for every object


@dataclass
class ExtraReferences:
    """References found beside CPython's own, in columns."""

    holder: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    kind: list[ReferenceKind] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    python: list[int] = field(default_factory=list)
    """Python references each accounts for; 0 where C++ owns the C++ object."""

    def add(self, holder: int, held: int, kind: ReferenceKind, name: str, python: int) -> None:
        """Note one reference, between indexes."""
        self.holder.append(holder)
        self.held.append(held)
        self.kind.append(kind)
        self.name.append(name)
        self.python.append(python)


@dataclass
class Storage:
    """One storage: who has it, and what it owns."""

    address: int
    bytes: int
    holders: list[int] = field(default_factory=list)
    """Indexes of the tensors and Python storage objects over it."""


class NativeReferences:
    """Adds to a sweep what C++ holds; indexes go on counting behind the sweep's own objects."""

    def __init__(self, heap: Sweep) -> None:
        self.sweep = heap
        self.types = Types()
        self.extra = ExtraReferences()
        self.storages: dict[int, Storage] = {}
        self.replayed: set[int] = set()
        """Tensors that a view's functions hold, which nothing lists: its base and the views in between."""
        self._views: dict[int, list[tuple[int, bool]]] = {}
        """Base to its views, each with whether C++ keeps functions with it."""
        self.problems: list[str] = []
        self._hollow: set[int] = set()
        """Storages of wrapper subclasses and fake tensors: a shape's worth of bytes that nobody owns."""
        self.new: list[Any] = []
        """Objects met on the way that the sweep does not have."""
        self._first_new = len(heap.objects)
        untracked = range(heap.tracked, self._first_new)
        self._known: dict[int, int] = {id(heap.objects[k]): k for k in untracked}
        self.kinds: tuple[Ints, Ints]
        """Addresses of all types, sorted, and for each object of the sweep the place of its own."""
        self.role, self.containers = self._roles()

    def _roles(self) -> tuple[NDArray[np.int8], Ints]:
        """The role of each object of the sweep, and the indexes of all containers that can gain items."""
        addresses, first, inverse = np.unique(self.sweep.types, return_index=True, return_inverse=True)
        codes = np.zeros(len(addresses), dtype=np.int8)
        gaining = np.zeros(len(addresses), dtype=bool)
        for k, place in enumerate(first.tolist()):
            kind = type(self.sweep.objects[place])
            codes[k], gaining[k] = self.types.role(kind), container_base(kind) is not None
        self.kinds = addresses, inverse
        return codes[inverse], np.flatnonzero(gaining[inverse])

    def walk(self) -> None:
        """Walk from every tensor and grad node through what they hold, without recursion."""
        with torch._C.DisableTorchFunction(), own_memory() as words:
            special = np.flatnonzero((self.role > 0) | (self.sweep.types == id(SAVED_TENSOR)))
            self._known.update(zip(self.sweep.addresses[special].tolist(), special.tolist(), strict=True))
            waiting = special.tolist() + [self._first_new + k for k in range(len(self.new))]
            deepest = deepest_walk()
            for _ in range(deepest):
                if not waiting:
                    break
                waiting = self._visit(waiting, words)
            if waiting:
                self.problems.append(
                    f"an autograd graph more than {deepest} references deep was not walked to its end; "
                    "what lies behind is unexplained"
                )
            self._replay_views()
            for address in self._hollow:  # their Python storage objects, met by the sweep, own nothing either
                self.storages.pop(address, None)
            self._absorb_new()

    def _visit(self, indexes: list[int], words: Words) -> list[int]:
        start = len(self.new)
        for index in indexes:
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
            elif type(obj) is SAVED_TENSOR:
                for held in saved_holds(obj, "saved tensor", words):
                    self._note(index, held)
            elif role is _STORAGE and not is_meta(obj):
                address = int(obj._cdata)
                entry = self.storages.setdefault(address, Storage(address, _nbytes(obj)))
                entry.holders.append(index)
        return [self._first_new + k for k in range(start, len(self.new))]

    def _replay_views(self) -> None:
        """Join the views that only the functions of another view of the same base hold with that one."""
        views = {k: v for k, v in self._views.items() if any(replaying for _, replaying in v)}
        if not views:
            return
        known = Counter(held for held, python in zip(self.extra.held, self.extra.python, strict=True) if python == 0)
        for base, members in views.items():
            unseen = {index for index, _ in members if TensorBase._use_count(self._object(index)) - 1 > known[index]}
            holders = [index for index, replaying in members if replaying and index not in unseen]
            if holders:
                self.replayed |= {base, *unseen}
                for holder in holders:
                    for index in unseen:
                        self.extra.add(holder, index, ReferenceKind.MEMORY, "._view_func", 0)

    def _object(self, index: int) -> Any:
        return self.sweep.objects[index] if index < self._first_new else self.new[index - self._first_new]

    def _note(self, index: int, held: Held) -> None:
        holder = index if held.of is None else self.index_of(held.of)
        at = self.index_of(held.target) if held.target is not None else self.find(held.at)
        if at >= 0:
            self.extra.add(holder, at, held.kind, held.name, held.python)

    def _note_storage(self, index: int, tensor: Any) -> None:
        address = storage_of(tensor)
        if address is not None:
            self._add_holder(index, address, tensor)
        elif has_storage(tensor):
            self._hollow.add(int(storage_address(tensor)))
        else:
            for name, part in sparse_parts(tensor):
                address = storage_of(part)
                if TensorBase._use_count(part) > 1:  # the tensor's own
                    self.extra.add(index, self.index_of(part), ReferenceKind.ATTRIBUTE, name, 0)
                elif address is not None:
                    self._add_holder(index, address, part)

    def _add_holder(self, index: int, address: int, tensor: Any) -> None:
        entry = self.storages.get(address)
        if entry is None:
            entry = self.storages[address] = Storage(address, storage_bytes(tensor))
        entry.holders.append(index)

    def find(self, address: int) -> int:
        """Index of the object at an address, -1 where it is not in the graph."""
        index = self._known.get(address)
        if index is None:
            index = self.sweep.address_book.find_one(address)
        return index

    def index_of(self, obj: Any) -> int:
        """Index of an object, which joins the graph if it is new."""
        index = self.find(id(obj))
        if index < 0:
            index = self._first_new + len(self.new)
            self.new.append(obj)
        self._known[id(obj)] = index
        return index

    def _absorb_new(self) -> None:
        """Give the new objects their counts and CPython's own references."""
        start = len(self.sweep.objects)
        new, self.new = self.new, []
        self._first_new = start + len(new)
        counts = counts_of(new)
        holders, helds = [], []
        for k, obj in enumerate(new):
            for referent in gc.get_referents(obj):
                at = self.find(id(referent))
                if at >= 0:
                    holders.append(start + k)
                    helds.append(at)
        append(self.sweep, new, counts, holders, helds)
        roles = np.array([self.types.role(type(obj)) for obj in new], dtype=np.int8)
        self.role = np.concatenate([self.role, roles])

    def read_frames(self, frames: list[FrameType], growing: Growing | None = None) -> dict[int, str]:
        """Add the locals and operands of running frames; returns the index of each frame, with its function's name.

        `growing` says which dicts are wanted that gc does not track.
        CPython shows nothing of a running frame (`frame_traverse` skips what the interpreter owns).
        """
        with own_memory() as words:
            operands = [operands_of(frame, words) for frame in frames]
        cells = self._loose_cells()
        running: dict[int, str] = {}
        for frame, addresses in zip(frames, operands, strict=True):
            index = self.index_of(frame)
            running[index] = frame.f_code.co_qualname
            for at in filter(lambda at: at >= 0, map(self.find, addresses)):
                self.extra.add(index, at, ReferenceKind.OPERAND, "an operand", 1)
            closed = {*frame.f_code.co_cellvars, *frame.f_code.co_freevars}
            for name, value in frame_locals(frame).items():
                at = self.find(id(value))
                if at < 0 and growing is not None and type(value) is dict and value and len(growing(dicts_of([value]))):
                    at = self.index_of(value)
                if at < 0:
                    continue
                if name in closed:
                    for cell in cells.get(id(value), ()):
                        self.extra.add(index, cell, ReferenceKind.LOCAL, f"local {name}", 1)
                else:
                    self.extra.add(index, at, ReferenceKind.LOCAL, f"local {name}", 1)
                del value
        self._absorb_new()
        return running

    def _loose_cells(self) -> dict[int, list[int]]:
        """Cells with an owner that CPython does not show, by the address of what they hold."""
        count = len(self.sweep.objects)
        places = np.flatnonzero(self.sweep.types == id(CellType))
        missing = self.sweep.counts[places] - np.bincount(self.sweep.held, minlength=count)[places]
        by_content: dict[int, list[int]] = {}
        for index in places[missing > 0].tolist():
            try:
                by_content.setdefault(id(self.sweep.objects[index].cell_contents), []).append(index)
            except ValueError:  # an empty cell
                continue
        return by_content


def deepest_walk() -> int:
    """How many references deep the walk goes: torch frees a chain of nodes that Python has seen by recursion."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _UNBOUNDED if soft == resource.RLIM_INFINITY else max(soft // _STACK_PER_NODE, _MIN_DEPTH)


def _nbytes(storage: Any) -> int:
    return int(StorageBase.nbytes(storage))
