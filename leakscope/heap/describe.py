"""The kind, label, stable name and line of an object."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from leakscope.graph.model import ObjectKind
from leakscope.heap.autograd import Role, Types
from leakscope.heap.classes import class_where, module_file
from leakscope.heap.referents import LRU_CACHE
from leakscope.heap.storages import tensor_bytes
from leakscope.process.raw_types import Bases, instance_dict, made_in_python, mro, qualified_name, type_name
from leakscope.process.source import user_code as source
from leakscope.process.torch_compat import IS_PARAMETER, TensorBase, without_functions


class Described(NamedTuple):
    """The columns of one object in the graph."""

    kind: ObjectKind
    type: str
    label: str
    name: str
    where: str
    size: int = -1


_TENSOR, _GRAD_NODE = Role.TENSOR, Role.GRAD_NODE  # bound once: asked for every object
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
"""(base, kind, label with the type's name) of instances, the first base that fits."""


def describe(obj: Any, known: Types) -> Described:
    """Say what an object is, by its C slots; the user's code does not run.

    What an object does not tell is missing in its own label only.
    """
    try:
        return _described(obj, known)
    except Exception:  # noqa: BLE001 - one object must not cost the look
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
    told: Described | None = known.told.get(id(kind))
    if told is not None:
        return told
    role = known.role(kind)
    if role is _TENSOR:
        return _tensor(obj, kind, known)
    if role is _GRAD_NODE:
        name = type_name(kind)
        told = known.told[id(kind)] = Described(ObjectKind.GRAD_NODE, name, name, name, class_where(kind))
        return told
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
    told = Described(word, name, label, name, class_where(kind), _span(obj, bases))
    if np.ndarray not in bases and kind is not memoryview:
        known.told[id(kind)] = told
    return told


def _array(obj: Any, kind: type) -> Described:
    name = qualified_name(kind)
    if kind is bytes or kind is bytearray:
        return Described(ObjectKind.NATIVE, name, f"{name} object", name, "")
    label = (
        f"{type_name(kind)} {_OF_ARRAY['dtype'].__get__(obj)}[{', '.join(map(str, _OF_ARRAY['shape'].__get__(obj)))}]"
    )
    return Described(ObjectKind.NATIVE, name, label, name, "", _span(obj, mro(kind)))


def _lru_cache(obj: Any, kind: type) -> Described:
    """The cache bears the name of the function that it stands for, and its line."""
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
    """Those of one type, dtype and shape are told alike, but for instances of subclasses, which may differ."""
    with without_functions():
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or _is_odd(obj):
            return _described_tensor(obj, kind)
        alike = id(kind), _dtype(obj), TensorBase.size(obj), TensorBase.stride(obj)
        try:
            told: Described | None = known.told.get(alike)
        except TypeError:  # a size that is a symbol
            return _described_tensor(obj, kind)
        if told is None:
            told = known.told[alike] = _described_tensor(obj, kind)
        return told


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
    """A bound method bears the name of its function, and its line."""
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
"""By the type's address; of arrays and bytes there may be a hundred thousand."""
