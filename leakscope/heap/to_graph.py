"""Turns the analysed heap into a `HeapGraph`, and finds where reference paths begin."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from leakscope.graph.model import (
    KINDS,
    REFERENCE_KINDS,
    ROOTS,
    CommUse,
    HeapGraph,
    Ints,
    ObjectKind,
    ReferenceKind,
    RootKind,
)
from leakscope.graph.walks import reachable
from leakscope.heap.classes import package_base, package_that_sets
from leakscope.heap.describe import Described, describe, namespace
from leakscope.heap.garbage import ExplainedHeap
from leakscope.heap.naming import NamedReference, ReferenceNames
from leakscope.heap.native_graph import Storage
from leakscope.process.gc_control import go_on
from leakscope.process.raw_types import is_of_leakscope
from leakscope.process.source.user_code import is_users

if TYPE_CHECKING:
    from leakscope.heap.native_graph import NativeReferences


GivenRoot = tuple[str, weakref.ref[object]]
"""The name that the user gave an object, as `trainer.model`, and the object for as long as it lives."""


@dataclass(frozen=True)
class Beginnings:
    """What traces begin with, or had better not, by index in the sweep."""

    given: Mapping[int, str]
    """What the user gave a name, to that name."""
    callbacks: frozenset[int]
    """The functions of the user's that a library has called, and that called us."""


def given_places(native: NativeReferences, given: Sequence[GivenRoot]) -> dict[int, str]:
    """Index of each that still lives, with its name; of two names for one object the shorter."""
    places: dict[int, str] = {}
    for name, of in sorted(given, key=lambda root: -len(root[0])):
        index = native.find(id(of()))  # nothing is kept: id(None) is that of no object gc tracks
        if index >= 0:
            places[index] = name
    return places


def callback_frames(native: NativeReferences) -> frozenset[int]:
    """Index of the frame that called leakscope, and of the user's above it, where a library called the first of them.

    None where the script's own code calls, as in a loop that is its own.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    places = []
    while frame is not None and is_users(frame.f_code.co_filename) and frame.f_code.co_name != "<module>":
        places.append(native.find(id(frame)))
        frame = frame.f_back
    by_library = frame is not None and frame.f_code.co_name != "<module>" and not _has_no_file(frame)
    return frozenset(places) if by_library else frozenset()


def _is_between(frame: FrameType) -> bool:
    """Whether a frame is leakscope's, or of what its `with` blocks go through."""
    name = frame.f_globals.get("__name__")
    return is_of_leakscope(name) or name == "contextlib"


def _has_no_file(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<")


_STORAGE = ObjectKind.STORAGE
_STORAGE_TEXT = _STORAGE.value
_OF_CLASSES = (ObjectKind.INSTANCE, ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER)
"""Kinds of objects whose classes derive from those of packages that give advice of their own."""
_KIND_CODES = {kind: code for code, kind in enumerate(KINDS)}
_REFERENCE_CODES = {kind: code for code, kind in enumerate(REFERENCE_KINDS)}
_ROOT_CODES = {root: code for code, root in enumerate(ROOTS)}


@dataclass(frozen=True)
class StorageFacts:
    """What is known of storages, each by its address."""

    made_at: Mapping[int, str]
    """`train.py:41 forward (aten::addmm)`."""
    comm_uses: Mapping[int, CommUse]
    """The operation that used it last."""
    device: Mapping[int, str] | None
    """`cuda:0` for each outside host memory; None where no accelerator is in use."""

    def label(self, address: int) -> str:
        """As a person says it; where there is an accelerator, which memory it is."""
        if self.device is None:
            return "tensor memory"
        return f"tensor memory on {self.device[address]}" if address in self.device else "tensor memory of the host"


@dataclass
class _Strings:
    index: dict[str, int] = field(default_factory=lambda: {"": 0})

    def codes(self, texts: Sequence[str]) -> Ints:
        for text in dict.fromkeys(texts):
            self.index.setdefault(text, len(self.index))
        return _codes(texts, self.index)


def _codes(values: Sequence[str], codes: Mapping[Any, int]) -> Ints:
    return _ints(list(map(codes.__getitem__, values)))


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> list[Sequence[Any]]:
    """The columns of some rows, of which there are so many."""
    return list(zip(*rows, strict=True)) if rows else [()] * count


def to_heap_graph(
    heap: ExplainedHeap, facts: StorageFacts, beginnings: Beginnings
) -> tuple[HeapGraph, list[int], dict[int, int]]:
    """The graph, for each of its objects the index in the sweep, and where each container stands that is gaining."""
    names = ReferenceNames(heap.native, heap.refcounts, heap.pruned)
    order = [k for k in heap.pruned.objects.tolist() if names.stands_for(k) == k]
    place = {k: i for i, k in enumerate(order)}
    references = sorted({r for r in names.references() if r.holder in place and r.held in place})
    kept = _columns(references, len(NamedReference._fields))
    holder, held = (_ints([place[k] for k in column]) for column in kept[:2])
    storages, freed = _storages_in(order, heap), _freed(order, heap)
    described = [_of_storage(storages[i], facts) if i in storages else _of_object(k, heap) for k, i in place.items()]
    kinds, types, labels, own_names, where, sizes = _columns(described, len(Described._fields))
    text = _Strings()
    address = {i: storage.address for i, storage in storages.items()}
    graph = HeapGraph(
        type=text.codes(types),
        kind=_codes(kinds, _KIND_CODES),
        label=text.codes(labels),
        name=text.codes(own_names),
        where=text.codes(where),
        bytes=_ints([storages[i].bytes if i in storages else 0 for i in range(len(order))]),
        size=_ints(sizes),
        root=_roots(order, heap, holder, held, beginnings.callbacks),
        freed=freed,
        unexplained=heap.refcounts.unexplained[order].astype(np.int64) if order else _ints([]),
        holder=holder,
        held=held,
        reference_kind=_codes(kept[2], _REFERENCE_CODES),
        reference_name=text.codes(kept[3]),
        reference_where=text.codes(kept[4]),
        strings=tuple(text.index),  # evaluated last: every text has its code by now
        made_at={i: facts.made_at[a] for i, a in address.items() if a in facts.made_at},
        comm_uses={i: facts.comm_uses[a] for i, a in address.items() if a in facts.comm_uses},
        device={i: facts.device[a] for i, a in address.items() if a in facts.device} if facts.device else {},
        given={place[k]: name for k, name in beginnings.given.items() if k in place and freed[place[k]] == 0},
        bases=_bases(order, described, heap),
        set_by=_set_by(references, place, freed, heap),
    )
    return graph, order, {k: place[at] for k in heap.gaining if (at := names.stands_for(k)) in place}


def _bases(order: Sequence[int], described: Sequence[Described], heap: ExplainedHeap) -> dict[str, str]:
    """The class of a package's that each type of the user's derives from, for those that have one."""
    bases: dict[str, str] = {}
    for index, told in zip(order, described, strict=True):
        if told.where and told.kind in _OF_CLASSES and told.type not in bases:
            bases[told.type] = package_base(type(heap.native.sweep.objects[index]))
    return {name: base for name, base in bases.items() if base}


def _set_by(
    references: Sequence[NamedReference], place: Mapping[int, int], freed: Ints, heap: ExplainedHeap
) -> dict[int, str]:
    """The package that sets each attribute of garbage which no line of the user's does."""
    known: dict[tuple[int, str], str] = {}
    packages: dict[int, str] = {}
    objects = heap.native.sweep.objects
    for index, r in enumerate(references) if freed.any() else ():
        if freed[place[r.holder]] and r.kind is ReferenceKind.ATTRIBUTE and not r.where and r.name.startswith("."):
            kind = type(objects[r.holder])
            if (id(kind), r.name) not in known:
                known[id(kind), r.name] = package_that_sets(kind, r.name[1:])
            if known[id(kind), r.name]:
                packages[index] = known[id(kind), r.name]
    return packages


def _freed(order: Sequence[int], heap: ExplainedHeap) -> Ints:
    return heap.freed[np.searchsorted(heap.pruned.objects, _ints(order))]


def _storages_in(order: Sequence[int], heap: ExplainedHeap) -> dict[int, Storage]:
    """Index in the graph to the storage, for each that is one."""
    first, storages = heap.refcounts.objects, list(heap.native.storages.values())
    return {i: storages[k - first] for i, k in enumerate(order) if k >= first}


def _of_storage(storage: Storage, facts: StorageFacts) -> Described:
    made_at = facts.made_at.get(storage.address, "")
    return Described(_STORAGE, _STORAGE_TEXT, facts.label(storage.address), _STORAGE_TEXT, made_at)


def _of_object(index: int, heap: ExplainedHeap) -> Described:
    go_on()
    pruned = heap.pruned
    if index in pruned.modules:
        return namespace(pruned.modules[index])
    described = describe(heap.native.sweep.objects[index], heap.native.types)
    if index in pruned.arrays:
        return described._replace(kind=ObjectKind.ARRAY, size=pruned.arrays[index])
    return described


def _ints(values: Sequence[int]) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _roots(order: list[int], heap: ExplainedHeap, holder: Ints, held: Ints, callbacks: Collection[int]) -> Ints:
    """Why each object lives; what lives for a reason outside the pruned graph is a root of the interpreter's."""
    codes = np.zeros(len(order), dtype=np.int64)
    for i, index in enumerate(order):
        if index in heap.pruned.modules:
            codes[i] = _ROOT_CODES[RootKind.MODULE]
        elif index in heap.running:
            codes[i] = _ROOT_CODES[RootKind.CALLBACK if index in callbacks else RootKind.FRAME]
        elif heap.refcounts.unexplained[index] > 0:
            codes[i] = _ROOT_CODES[RootKind.NATIVE]
    alive = _freed(order, heap) == 0
    while True:
        lost = alive & ~reachable(len(order), holder, held, np.flatnonzero(codes > 0))
        if not lost.any():
            return codes
        held_by_lost = np.zeros(len(order), bool)
        held_by_lost[held[lost[holder]]] = True
        tops = lost & ~held_by_lost
        codes[np.flatnonzero(tops if tops.any() else lost)] = _ROOT_CODES[RootKind.INTERPRETER]
