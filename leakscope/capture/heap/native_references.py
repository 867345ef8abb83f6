"""From tensors into autograd's C++ graph and back: the references that no Python traversal shows."""

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

from leakscope.capture.heap.autograd import SAVED_TENSOR, Held, Types, node_holds, replays, saved_holds, tensor_holds
from leakscope.capture.heap.gc_heap import Sweep, counts_of, extend
from leakscope.capture.heap.raw_memory import Words, operands_of, own_memory
from leakscope.capture.heap.referents import frame_locals
from leakscope.capture.heap.storages import (
    StorageBase,
    TensorBase,
    has_storage,
    is_meta,
    sparse_parts,
    storage_address,
    storage_bytes,
    storage_of,
)

Ints = NDArray[np.int64]


@dataclass
class Extra:
    """References found beside CPython's own, in columns."""

    holder: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    python: list[int] = field(default_factory=list)
    """Python references each accounts for; 0 where C++ owns the C++ object."""

    def add(self, holder: int, held: int, kind: str, name: str, python: int) -> None:
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


class Explorer:
    """Adds to a sweep what C++ holds; indexes go on counting behind the sweep's own objects."""

    def __init__(self, found: Sweep) -> None:
        self.sweep = found
        self.types = Types()
        self.extra = Extra()
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
        self._first_new = len(found.objects)
        untracked = range(found.tracked, self._first_new)
        self._known: dict[int, int] = {id(found.objects[k]): k for k in untracked}
        self.role = self._roles()

    def _roles(self) -> NDArray[np.int8]:
        """0 plain, 1 tensor, 2 grad node, 3 storage object, for each object of the sweep."""
        addresses, first, inverse = np.unique(self.sweep.types, return_index=True, return_inverse=True)
        codes = np.zeros(len(addresses), dtype=np.int8)
        for k, place in enumerate(first.tolist()):
            codes[k] = _ROLE_CODES[self.types.role(type(self.sweep.objects[place]))]
        roles: NDArray[np.int8] = codes[inverse]
        return roles

    def explore(self) -> None:
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
                    f"an autograd graph more than {deepest} references deep was not walked to its end; what lies behind is unexplained"
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
            if role == "tensor":
                self._storage(index, obj)
                for held in tensor_holds(obj, self.problems):
                    self._hold(index, held)
                    if held.name == "._base":
                        self._views.setdefault(self.index_of(held.target), []).append(
                            (index, replays(obj, held.target))
                        )
            elif role == "grad node":
                for held in node_holds(obj, self.types, words):
                    self._hold(index, held)
            elif type(obj) is SAVED_TENSOR:
                for held in saved_holds(obj, "saved tensor", words):
                    self._hold(index, held)
            elif role == "storage" and not is_meta(obj):
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
                        self.extra.add(holder, index, "memory", "._view_func", 0)

    def _object(self, index: int) -> Any:
        return self.sweep.objects[index] if index < self._first_new else self.new[index - self._first_new]

    def _hold(self, index: int, held: Held) -> None:
        holder = index if held.of is None else self.index_of(held.of)
        at = self.index_of(held.target) if held.target is not None else self.find(held.at)
        if at >= 0:
            self.extra.add(holder, at, held.kind, held.name, held.python)

    def _storage(self, index: int, tensor: Any) -> None:
        address = storage_of(tensor)
        if address is not None:
            self._has(index, address, tensor)
        elif has_storage(tensor):
            self._hollow.add(int(storage_address(tensor)))
        else:
            for name, part in sparse_parts(tensor):
                address = storage_of(part)
                if TensorBase._use_count(part) > 1:  # the tensor's own
                    self.extra.add(index, self.index_of(part), "attribute", name, 0)
                elif address is not None:
                    self._has(index, address, part)

    def _has(self, index: int, address: int, tensor: Any) -> None:
        entry = self.storages.get(address)
        if entry is None:
            entry = self.storages[address] = Storage(address, storage_bytes(tensor))
        entry.holders.append(index)

    def find(self, address: int) -> int:
        """Index of the object at an address, -1 where it is not in the graph."""
        index = self._known.get(address)
        if index is None:
            index = self.sweep.book.find_one(address)
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
        extend(self.sweep, new, counts)
        self.role = np.concatenate(
            [self.role, np.array([_ROLE_CODES[self.types.role(type(obj))] for obj in new], dtype=np.int8)]
        )
        self.sweep.holder = np.concatenate([self.sweep.holder, np.asarray(holders, dtype=np.int32)])
        self.sweep.held = np.concatenate([self.sweep.held, np.asarray(helds, dtype=np.int32)])

    def read_frames(self, frames: list[FrameType]) -> dict[int, str]:
        """Add the locals and operands of running frames; returns the index of each frame, with its function's name.

        CPython shows nothing of a running frame (`frame_traverse` skips what the interpreter owns).
        """
        with own_memory() as words:
            operands = [operands_of(frame, words) for frame in frames]
        cells = self._loose_cells()
        found: dict[int, str] = {}
        for frame, addresses in zip(frames, operands, strict=True):
            index = self.index_of(frame)
            found[index] = frame.f_code.co_qualname
            for at in filter(lambda at: at >= 0, map(self.find, addresses)):
                self.extra.add(index, at, "operand", "an operand", 1)
            closed = {*frame.f_code.co_cellvars, *frame.f_code.co_freevars}
            for name, value in frame_locals(frame).items():
                at = self.find(id(value))
                if at < 0:
                    continue
                if name in closed:
                    for cell in cells.get(id(value), ()):
                        self.extra.add(index, cell, "local", f"local {name}", 1)
                else:
                    self.extra.add(index, at, "local", f"local {name}", 1)
        return found

    def _loose_cells(self) -> dict[int, list[int]]:
        """Cells with an owner that CPython does not show, by the address of what they hold."""
        count = len(self.sweep.objects)
        places = np.flatnonzero(self.sweep.types == id(CellType))
        missing = self.sweep.counts[places] - np.bincount(self.sweep.held, minlength=count)[places]
        found: dict[int, list[int]] = {}
        for index in places[missing > 0].tolist():
            try:
                found.setdefault(id(self.sweep.objects[index].cell_contents), []).append(index)
            except ValueError:  # an empty cell
                continue
        return found


def deepest_walk() -> int:
    """How many references deep the walk goes: torch frees a chain of nodes that Python has seen by recursion.

    torch 2.13 overflowed an 8 MiB stack when a chain of 30,000 to 45,000 such nodes went, with no look involved.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _UNBOUNDED if soft == resource.RLIM_INFINITY else max(soft // _STACK_PER_NODE, 100)


_STACK_PER_NODE = 800
_UNBOUNDED = 1 << 40


def _nbytes(storage: Any) -> int:
    return int(StorageBase.nbytes(storage))


_ROLE_CODES = {"": 0, "tensor": 1, "grad node": 2, "storage": 3}
TENSOR, GRAD_NODE, STORAGE_OBJECT = 1, 2, 3
