"""What is this object, in a person's words: its kind, its label, its stable name, its line."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import sys
import threading
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from leakscope.capture.heap.autograd import TensorBase, Types
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.heap.referents import LRU_CACHE, flags_of, instance_dict, qualified_name, type_name
from leakscope.capture.heap.storages import tensor_bytes
from leakscope.capture.source import user_source as source


@dataclass(frozen=True)
class Described:
    """The columns of one object in the graph."""

    kind: str
    type: str
    label: str
    name: str
    where: str
    size: int = -1


_OF_ARRAY: Any = np.ndarray.__dict__
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_GENERATORS = {types.GeneratorType: "gi", types.CoroutineType: "cr", types.AsyncGeneratorType: "ag"}


def describe(obj: Any, known: Types) -> Described:
    """Looks only at C slots; the user's code does not run. What an object does not tell is missing in its own label only."""
    try:
        return _described(obj, known)
    except Exception:  # noqa: BLE001 - one object must not cost the look
        name, short = qualified_name(type(obj)), type_name(type(obj))
        word, label = ("tensor", short) if known.role(type(obj)) == "tensor" else _instance_kind(mro(type(obj)), short)
        return Described(word, name, label, name, "")


def _described(obj: Any, known: Types) -> Described:
    kind = type(obj)
    role = known.role(kind)
    if role == "tensor":
        with torch._C.DisableTorchFunction():
            return _tensor(obj, kind)
    if role == "grad node":
        name = type_name(kind)
        return Described("grad node", name, name, name, _class_where(kind))
    if kind is bytes or kind is bytearray or kind is np.ndarray:  # there may be a hundred thousand of them
        return _array(obj, kind)
    bases = mro(kind)
    if kind is types.FunctionType:
        return _function(obj)
    if kind is types.FrameType:
        return _frame(obj.f_code, obj.f_lineno)
    if any(kind is one for one in _GENERATORS):
        return _generator(obj, _GENERATORS[kind])
    if type in bases:
        name = qualified_name(obj)
        return Described("class", "type", f"class {type_name(obj)}", name, _class_where(obj))
    for base in _CONTAINERS:
        if base in bases:
            return _container(obj, kind, base)
    name = qualified_name(kind)
    short = type_name(kind)
    word, label = _instance_kind(bases, short)
    if kind is LRU_CACHE:
        return _lru_cache(obj, name)
    if np.ndarray in bases:
        label = _array(obj, kind).label
    return Described(word, name, label, name, _class_where(kind), _span(obj, bases))


def _array(obj: Any, kind: type) -> Described:
    name = qualified_name(kind)
    if kind is bytes or kind is bytearray:
        return Described("native", name, f"{name} object", name, "")
    label = (
        f"{type_name(kind)} {_OF_ARRAY['dtype'].__get__(obj)}[{', '.join(map(str, _OF_ARRAY['shape'].__get__(obj)))}]"
    )
    return Described("native", name, label, name, "", _span(obj, mro(kind)))


def _lru_cache(obj: Any, type_name: str) -> Described:
    """The cache bears the name of the function that it stands for, and its line."""
    size = f"maxsize {LRU_CACHE.cache_info(obj).maxsize}"
    wrapped = dict.get(instance_dict(obj, type(obj)) or {}, "__wrapped__")
    if type(wrapped) is not types.FunctionType:
        return Described("container", type_name, f"lru_cache, {size}", type_name, "")
    of = _function(wrapped)
    return Described("container", type_name, f"lru_cache of {of.name}(), {size}", of.name, of.where)


def _span(obj: Any, bases: tuple[type, ...]) -> int:
    """Bytes that an array or memoryview spans, -1 for anything else."""
    if np.ndarray in bases:
        own_items = not _OF_ARRAY["dtype"].__get__(obj).hasobject
        return int(_OF_ARRAY["nbytes"].__get__(obj)) if own_items else -1
    return obj.nbytes if type(obj) is memoryview else -1


def namespace(module: str) -> Described:
    main = sys.modules.get(module)
    filename = _module_file(main)
    label = (
        f"module {module}"
        if module != "__main__"
        else f"module __main__ ({source.short(filename)})"
        if filename
        else "module __main__"
    )
    return Described("namespace", "module", label, module, "")


def _instance_kind(bases: tuple[type, ...], short: str) -> tuple[str, str]:
    if torch.nn.Module in bases:
        return "nn.Module", f"{short} module"
    if torch.optim.Optimizer in bases:
        return "optimizer", f"{short} optimizer"
    if BaseException in bases:
        return "exception", f"{short} exception"
    if types.MethodType in bases:
        return "method", "bound method"
    if types.CellType in bases:
        return "cell", "closure cell"
    if types.TracebackType in bases:
        return "traceback", "traceback"
    if threading.Thread in bases:
        return "thread", f"{short} thread"
    if concurrent.futures.Future in bases or asyncio.Future in bases or short == "Future":
        return "future", f"{short} object"
    if short.endswith("Work"):
        return "work", f"{short} handle"
    if short == "RemovableHandle":
        return "hook handle", "hook handle"
    python_made = bool(flags_of(bases[0]) & (1 << 9))  # Py_TPFLAGS_HEAPTYPE
    return ("instance" if python_made else "native"), f"{short} object"


def _tensor(obj: Any, kind: type) -> Described:
    base = TensorBase
    dtype = str(base.dtype.__get__(obj)).removeprefix("torch.")
    # Parameter() of a tensor subclass marks the instance (torch/nn/parameter.py, `_is_param`): DTensor, quantized weights.
    parameter = torch.nn.Parameter in mro(kind) or (kind is not torch.Tensor and _marked(obj, kind))
    word = type_name(kind)
    name = qualified_name(kind)
    return Described(
        "parameter" if parameter else "tensor", name, f"{word} {dtype}[{_shape(obj)}]", name, "", _bytes(obj)
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
    return own is not None and dict.get(own, "_is_param") is True


def _function(obj: Any) -> Described:
    code = types.FunctionType.__dict__["__code__"].__get__(obj)
    return Described("function", "function", f"function {code.co_qualname}", code.co_qualname, source.of_code(code))


def _frame(code: types.CodeType, line: int | None) -> Described:
    where = source.at(code.co_filename, line or code.co_firstlineno)
    return Described("frame", "frame", f"frame of {code.co_qualname}", code.co_qualname, where)


def _generator(obj: Any, prefix: str) -> Described:
    code = getattr(obj, f"{prefix}_code")
    word = {"gi": "generator", "cr": "coroutine", "ag": "async generator"}[prefix]
    return Described("generator", word, f"{word} {code.co_qualname}", code.co_qualname, source.of_code(code))


def _container(obj: Any, kind: type, base: type) -> Described:
    size = base.__len__(obj)  # type: ignore[attr-defined]
    name = qualified_name(kind)
    short = type_name(kind)
    bound = collections.deque.__dict__["maxlen"].__get__(obj) if base is collections.deque else None
    extra = f", maxlen {bound}" if bound is not None else ""
    return Described(
        "container", name, f"{short}, {size} item{'s' if size != 1 else ''}{extra}", name, _class_where(kind), size
    )


def _module_file(module: Any) -> str:
    if module is None or types.ModuleType not in mro(type(module)):
        return ""
    found = module_names(module).get("__file__")
    return found if type(found) is str else ""


def module_names(module: Any) -> dict[str, Any]:
    """A module's namespace, without asking its own `__getattribute__`."""
    getter: Any = type.__dict__["__dict__"].__get__(types.ModuleType)["__dict__"]
    found: dict[str, Any] = getter.__get__(module)
    return found


def class_file(kind: type) -> str:
    """The file that defines a class, "" for one written in C."""
    module = type.__dict__["__dict__"].__get__(kind).get("__module__")
    return _module_file(sys.modules.get(module)) if type(module) is str else ""


def class_qualname(kind: type) -> str:
    return str(type.__dict__["__qualname__"].__get__(kind))


def _class_where(kind: type) -> str:
    filename = class_file(kind)
    if not filename or not source.is_users(filename):
        return ""
    name = class_qualname(kind)
    line = source.class_line(filename, name) or source.local_line(filename, "", name)  # `Batch = namedtuple(...)`
    return source.at(filename, line) if line else ""
