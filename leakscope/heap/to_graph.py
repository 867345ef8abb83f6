"""The live heap as a HeapGraph, pruned to the paths to tensor memory, with labels and lines of its objects."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

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
from leakscope.heap.autograd import Role, Types
from leakscope.heap.liveness import Liveness
from leakscope.heap.naming import NamedReference, ReferenceNames
from leakscope.heap.native_graph import Storage
from leakscope.heap.referents import LRU_CACHE, class_where, module_file, package_base, package_that_sets
from leakscope.heap.storages import tensor_bytes
from leakscope.process import user_code as source
from leakscope.process.gc_control import check_deadline
from leakscope.process.raw_types import (
    Bases,
    instance_dict,
    is_of_leakscope,
    made_in_python,
    mro,
    qualified_name,
    type_name,
)
from leakscope.process.torch_compat import IS_PARAMETER, TensorBase, without_functions
from leakscope.process.user_code import is_users

if TYPE_CHECKING:
    from leakscope.heap.native_graph import NativeGraph


class Described(NamedTuple):
    """The columns of one object in the graph."""

    kind: ObjectKind
    type: str
    label: str
    name: str
    where: str
    size: int = -1


_TENSOR, _GRAD_NODE = Role.TENSOR, Role.GRAD_NODE  # bound once: used for every object
_OF_ARRAY: Any = np.ndarray.__dict__
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_INSTANCES: tuple[tuple[type, ObjectKind, str], ...] = (
    (torch.nn.Module, ObjectKind.NN_MODULE, "{} module"),
    (torch.optim.Optimizer, ObjectKind.OPTIMIZER, "{} optimizer"),
    (BaseException, ObjectKind.EXCEPTION, "{} exception"),
    (types.CellType, ObjectKind.CELL, "closure cell"),
    (types.TracebackType, ObjectKind.TRACEBACK, "traceback"),
    (threading.Thread, ObjectKind.THREAD, "{} thread"),
    (concurrent.futures.Future, ObjectKind.FUTURE, "{} object"),
    (asyncio.Future, ObjectKind.FUTURE, "{} object"),
)
"""(base, kind, label with the type's name) for instances; the first matching base applies."""


def describe(obj: Any, known: Types) -> Described:
    """Describe an object through its C slots, without running user code.

    What cannot be read is missing in its own label only.
    """
    try:
        return _described(obj, known)
    except Exception:  # noqa: BLE001 - one object must not cost the snapshot
        kind = type(obj)
        name, short = qualified_name(kind), type_name(kind)
        if known.role(kind) is Role.TENSOR:
            return Described(ObjectKind.TENSOR, name, short, name, "")
        word, label = _instance_kind(mro(kind), short)
        return Described(word, name, label, name, "")


def namespace(module: str) -> Described:
    """The namespace of the module of this name."""
    filename = module_file(sys.modules.get(module)) if module == "__main__" else ""
    label = f"module {module} ({source.short(filename)})" if filename else f"module {module}"
    return Described(ObjectKind.NAMESPACE, "module", label, module, "")


def _described(obj: Any, known: Types) -> Described:
    kind = type(obj)
    described: Described | None = known.described.get(id(kind))
    if described is not None:
        return described
    role = known.role(kind)
    if role is _TENSOR:
        return _tensor(obj, kind, known)
    if role is _GRAD_NODE:
        name = type_name(kind)
        described = known.described[id(kind)] = Described(ObjectKind.GRAD_NODE, name, name, name, class_where(kind))
        return described
    of_exact_type = _EXACT.get(id(kind))
    if of_exact_type is not None:
        return of_exact_type(obj, kind)
    bases = mro(kind)
    if type in bases:
        return Described(ObjectKind.CLASS, "type", f"class {type_name(obj)}", qualified_name(obj), class_where(obj))
    for base in _CONTAINERS:
        if base in bases:
            return _container(obj, kind, base)
    name = qualified_name(kind)
    word, label = _instance_kind(bases, type_name(kind))
    if np.ndarray in bases:
        label = _array(obj, kind).label
    described = Described(word, name, label, name, class_where(kind), _span(obj, bases))
    if np.ndarray not in bases and kind is not memoryview:
        known.described[id(kind)] = described
    return described


def _array(obj: Any, kind: type) -> Described:
    name = qualified_name(kind)
    if kind is bytes or kind is bytearray:
        return Described(ObjectKind.NATIVE, name, f"{name} object", name, "")
    label = (
        f"{type_name(kind)} {_OF_ARRAY['dtype'].__get__(obj)}[{', '.join(map(str, _OF_ARRAY['shape'].__get__(obj)))}]"
    )
    return Described(ObjectKind.NATIVE, name, label, name, "", _span(obj, mro(kind)))


def _lru_cache(obj: Any, kind: type) -> Described:
    """An `lru_cache` has the name and line of the function it wraps."""
    size = f"maxsize {LRU_CACHE.cache_info(obj).maxsize}"
    wrapped = dict.get(instance_dict(obj, type(obj)) or {}, "__wrapped__")
    name = qualified_name(kind)
    if type(wrapped) is not types.FunctionType:
        return Described(ObjectKind.CONTAINER, name, f"lru_cache, {size}", name, "")
    cached = _function(wrapped, types.FunctionType)
    label = f"lru_cache of {cached.name}(), {size}"
    return Described(ObjectKind.CONTAINER, name, label, cached.name, cached.where)


def _span(obj: Any, bases: tuple[type, ...]) -> int:
    """Bytes that an array or memoryview spans, -1 for anything else."""
    if np.ndarray in bases:
        own_items = not _OF_ARRAY["dtype"].__get__(obj).hasobject
        return int(_OF_ARRAY["nbytes"].__get__(obj)) if own_items else -1
    return obj.nbytes if type(obj) is memoryview else -1


def _instance_kind(bases: Bases, short: str) -> tuple[ObjectKind, str]:
    for base, kind, label in _INSTANCES:
        if base in bases:
            return kind, label.format(short)
    if short == "Future":
        return ObjectKind.FUTURE, f"{short} object"
    if short.endswith("Work"):
        return ObjectKind.WORK, f"{short} handle"
    if short == "RemovableHandle":
        return ObjectKind.HOOK_HANDLE, "hook handle"
    return (ObjectKind.INSTANCE if made_in_python(bases[0]) else ObjectKind.NATIVE), f"{short} object"


def _tensor(obj: Any, kind: type, known: Types) -> Described:
    """Tensors of one type, dtype and shape share a label, except instances of subclasses, which may differ."""
    with without_functions():
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or _is_odd(obj):
            return _described_tensor(obj, kind)
        alike = id(kind), _dtype(obj), TensorBase.size(obj), TensorBase.stride(obj)
        try:
            described: Described | None = known.described.get(alike)
        except TypeError:  # a symbolic size
            return _described_tensor(obj, kind)
        if described is None:
            described = known.described[alike] = _described_tensor(obj, kind)
        return described


_layout, _is_nested, _dtype = (getattr(TensorBase, name).__get__ for name in ("layout", "is_nested", "dtype"))


def _is_odd(tensor: Any) -> bool:
    return _layout(tensor) is not torch.strided or _is_nested(tensor)


def _described_tensor(obj: Any, kind: type) -> Described:
    dtype = str(_dtype(obj)).removeprefix("torch.")
    # Parameter() of a tensor subclass marks the instance (torch/nn/parameter.py): DTensor, for one.
    parameter = torch.nn.Parameter in mro(kind) or (kind is not torch.Tensor and _marked(obj, kind))
    word = type_name(kind)
    name = qualified_name(kind)
    return Described(
        ObjectKind.PARAMETER if parameter else ObjectKind.TENSOR,
        name,
        f"{word} {dtype}[{_shape(obj)}]",
        name,
        "",
        _bytes(obj),
    )


def _shape(tensor: Any) -> str:
    try:
        return ", ".join(map(str, TensorBase.size(tensor)))
    except Exception:  # noqa: BLE001 - nested tensors have no one size; a wrapper subclass may answer with code of its own
        return "?"


def _bytes(tensor: Any) -> int:
    try:
        return tensor_bytes(tensor)
    except Exception:  # noqa: BLE001 - as for the shape
        return -1


def _marked(obj: Any, kind: type) -> bool:
    own = instance_dict(obj, kind)
    return own is not None and dict.get(own, IS_PARAMETER) is True


def _function(obj: Any, _: type) -> Described:
    code = types.FunctionType.__dict__["__code__"].__get__(obj)
    label, where = f"function {code.co_qualname}", source.of_code(code)
    return Described(ObjectKind.FUNCTION, "function", label, code.co_qualname, where)


def _method(obj: Any, kind: type) -> Described:
    """A bound method has the name and line of its function."""
    bound = types.MethodType.__dict__["__func__"].__get__(obj)
    if type(bound) is not types.FunctionType:
        return Described(ObjectKind.METHOD, "method", "bound method", "method", "")
    of = _function(bound, kind)
    return Described(ObjectKind.METHOD, "method", f"bound method {of.name}", of.name, of.where)


def _frame(obj: types.FrameType, _: type) -> Described:
    code = obj.f_code
    where = source.at(code.co_filename, obj.f_lineno or code.co_firstlineno)
    return Described(ObjectKind.FRAME, "frame", f"frame of {code.co_qualname}", code.co_qualname, where)


def _suspended(prefix: str, word: str) -> Callable[[Any, type], Described]:
    def described(obj: Any, _: type) -> Described:
        code = getattr(obj, f"{prefix}_code")
        label, where = f"{word} {code.co_qualname}", source.of_code(code)
        return Described(ObjectKind.GENERATOR, word, label, code.co_qualname, where)

    return described


def _container(obj: Any, kind: type, base: type) -> Described:
    size = base.__len__(obj)  # type: ignore[attr-defined]
    name = qualified_name(kind)
    short = type_name(kind)
    bound = collections.deque.__dict__["maxlen"].__get__(obj) if base is collections.deque else None
    extra = f", maxlen {bound}" if bound is not None else ""
    label = f"{short}, {size} item{'s' if size != 1 else ''}{extra}"
    return Described(ObjectKind.CONTAINER, name, label, name, class_where(kind), size)


_EXACT: dict[int, Callable[[Any, type], Described]] = {
    id(bytes): _array,
    id(bytearray): _array,
    id(np.ndarray): _array,
    id(types.FunctionType): _function,
    id(types.MethodType): _method,
    id(types.FrameType): _frame,
    id(types.GeneratorType): _suspended("gi", "generator"),
    id(types.CoroutineType): _suspended("cr", "coroutine"),
    id(types.AsyncGeneratorType): _suspended("ag", "async generator"),
    id(LRU_CACHE): _lru_cache,
}
"""By the type's address; there may be a hundred thousand arrays and bytes."""


GivenRoot = tuple[str, weakref.ref[object]]
"""The name that the user gave an object, as `trainer.model`, and a weak reference to it."""


@dataclass(frozen=True)
class PathStarts:
    """Preferred and discouraged starts of reference paths, by index in the sweep."""

    given: Mapping[int, str]
    """Objects that the user named, mapped to the name."""
    callbacks: frozenset[int]
    """Functions of the user that a library called and that called leakscope."""


def given_places(native: NativeGraph, given: Sequence[GivenRoot]) -> dict[int, str]:
    """Index of each named object that is alive, with its name; the shorter of two names."""
    places: dict[int, str] = {}
    for name, of in sorted(given, key=lambda root: -len(root[0])):
        index = native.find(id(of()))  # nothing is kept: id(None) belongs to no object that gc tracks
        if index >= 0:
            places[index] = name
    return places


def callback_frames(native: NativeGraph) -> frozenset[int]:
    """Index of the frame that called leakscope and of the user's frames above it, if a library called the first of
    them.

    Empty if the script's own code calls, as in its own loop.
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
    """Whether a frame belongs to leakscope or to the machinery of its `with` blocks."""
    name = frame.f_globals.get("__name__")
    return is_of_leakscope(name) or name == "contextlib"


def _has_no_file(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<")


_STORAGE = ObjectKind.STORAGE
_STORAGE_TEXT = _STORAGE.value
_OF_CLASSES = (ObjectKind.INSTANCE, ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER)
"""Kinds of objects whose classes derive from those of packages with their own advice."""
_KIND_CODES = {kind: code for code, kind in enumerate(KINDS)}
_REFERENCE_CODES = {kind: code for code, kind in enumerate(REFERENCE_KINDS)}
_ROOT_CODES = {root: code for code, root in enumerate(ROOTS)}


@dataclass(frozen=True)
class StorageFacts:
    """Facts about storages, each by its address."""

    made_at: Mapping[int, str]
    """`train.py:41 forward (aten::addmm)`."""
    comm_uses: Mapping[int, CommUse]
    """The operation that used it last."""
    device: Mapping[int, str] | None
    """The device of each storage outside host memory, as `cuda:0`; None if no accelerator is in use."""

    def label(self, address: int) -> str:
        """A label for people; names the kind of memory if there is an accelerator."""
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
    """The columns of `count` rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * count


def to_heap_graph(
    heap: Liveness, facts: StorageFacts, beginnings: PathStarts
) -> tuple[HeapGraph, list[int], dict[int, int]]:
    """Return the graph, the index in the sweep of each of its objects, and the index of each growing container."""
    names = ReferenceNames(heap)
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
        strings=tuple(text.index),  # evaluated last: every string has its index by now
        made_at={i: facts.made_at[a] for i, a in address.items() if a in facts.made_at},
        comm_uses={i: facts.comm_uses[a] for i, a in address.items() if a in facts.comm_uses},
        device={i: facts.device[a] for i, a in address.items() if a in facts.device} if facts.device else {},
        given={place[k]: name for k, name in beginnings.given.items() if k in place and freed[place[k]] == 0},
        bases=_bases(order, described, heap),
        set_by=_set_by(references, place, freed, heap),
    )
    return graph, order, {k: place[at] for k in heap.gaining if (at := names.stands_for(k)) in place}


def _bases(order: Sequence[int], described: Sequence[Described], heap: Liveness) -> dict[str, str]:
    """The package's class from which each type of the user derives, for those that have one."""
    bases: dict[str, str] = {}
    for index, node in zip(order, described, strict=True):
        if node.where and node.kind in _OF_CLASSES and node.type not in bases:
            bases[node.type] = package_base(type(heap.native.sweep.objects[index]))
    return {name: base for name, base in bases.items() if base}


def _set_by(
    references: Sequence[NamedReference], place: Mapping[int, int], freed: Ints, heap: Liveness
) -> dict[int, str]:
    """The package that sets each attribute of garbage that no line of the user sets."""
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


def _freed(order: Sequence[int], heap: Liveness) -> Ints:
    return heap.freed[np.searchsorted(heap.pruned.objects, _ints(order))]


def _storages_in(order: Sequence[int], heap: Liveness) -> dict[int, Storage]:
    """Index in the graph, mapped to the storage, for each storage."""
    first, storages = heap.native.references.objects, heap.native.storages
    return {i: storages[k - first] for i, k in enumerate(order) if k >= first}


def _of_storage(storage: Storage, facts: StorageFacts) -> Described:
    made_at = facts.made_at.get(storage.address, "")
    return Described(_STORAGE, _STORAGE_TEXT, facts.label(storage.address), _STORAGE_TEXT, made_at)


def _of_object(index: int, heap: Liveness) -> Described:
    check_deadline()
    pruned = heap.pruned
    if index in pruned.modules:
        return namespace(pruned.modules[index])
    described = describe(heap.native.sweep.objects[index], heap.native.types)
    if index in pruned.arrays:
        return described._replace(kind=ObjectKind.ARRAY, size=pruned.arrays[index])
    return described


def _ints(values: Sequence[int]) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _roots(order: list[int], heap: Liveness, holder: Ints, held: Ints, callbacks: Collection[int]) -> Ints:
    """The GC root of each object; what is alive for a reason outside the pruned graph is a root of the interpreter."""
    codes = np.zeros(len(order), dtype=np.int64)
    for i, index in enumerate(order):
        if index in heap.pruned.modules:
            codes[i] = _ROOT_CODES[RootKind.MODULE]
        elif index in heap.native.running:
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
