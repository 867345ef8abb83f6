"""Makes a cut for real: takes one named reference away from its holder."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

from leakscope.capture.heap.python.code_referents import forget_variable
from leakscope.capture.heap.python.referents import LRU_CACHE
from leakscope.capture.heap.raw_types import instance_dict, mro, type_dict
from leakscope.capture.torch_private import MODULE_DICTS, TensorBase
from leakscope.graph.model import ReferenceKind

CANNOT = "Python cannot make this cut: only C++ holds the reference"


def cut(holder: Any, held: Any, kind: ReferenceKind, name: str) -> str:
    """Remove the reference; "" when done, else why Python cannot.

    To be called in a forked copy of the process only: it changes the program.
    """
    cutter = _CUTTERS.get(kind)
    return cutter(holder, held, name) if cutter is not None else CANNOT


def _attribute(holder: Any, held: Any, name: str) -> str:
    if name == ".grad" and TensorBase in mro(type(holder)):
        TensorBase.grad.__set__(holder, None)
        return ""
    if type in mro(type(holder)):
        return _of_class(holder, held, name.removeprefix("."))
    names = holder if type(holder) is dict else _dict_of(holder)
    for values in (names or {}, *_module_dicts(names)):
        for key, value in list(values.items()):
            if value is held and name in (f".{key}", f"[{key}]"):
                dict.__delitem__(values, key)
                return ""
    return _descriptor(holder, name.removeprefix("."))


def _dict_of(holder: Any) -> dict[str, Any] | None:
    """An instance's own dict, which is made where it keeps its attributes without one."""
    if instance_dict(holder, type(holder)) is None:
        return None
    of_type = (type_dict(base).get("__dict__") for base in mro(type(holder)))
    own: dict[str, Any] = next(found for found in of_type if found is not None).__get__(holder)
    return own


def _of_class(holder: type, held: Any, name: str) -> str:
    if type_dict(holder).get(name) is not held:
        return f"Python cannot make this cut: {name} is no attribute of a class that can be deleted"
    type.__delattr__(holder, name)
    return ""


def _module_dicts(names: dict[str, Any] | None) -> list[dict[str, Any]]:
    of_module = [(names or {}).get(key) for key in MODULE_DICTS]
    return [values for values in of_module if type(values) is dict]


def _descriptor(holder: Any, name: str) -> str:
    if name == "__traceback__" and isinstance(holder, BaseException):
        holder.__traceback__ = None
        return ""
    if name in ("__context__", "__cause__") and isinstance(holder, BaseException):
        setattr(holder, name, None)
        return ""
    for base in mro(type(holder)):
        descriptor = type.__dict__["__dict__"].__get__(base).get(name)
        if type(descriptor) is types.MemberDescriptorType:
            try:
                descriptor.__set__(holder, None)
                return ""
            except (AttributeError, TypeError):
                break
    return f"Python cannot make this cut: {name} of a {type(holder).__name__} cannot be set"


def _item(holder: Any, held: Any, _name: str) -> str:
    bases = mro(type(holder))
    if list in bases or collections.deque in bases:
        base: Any = list if list in bases else collections.deque
        for place in range(base.__len__(holder)):
            if base.__getitem__(holder, place) is held:
                base.__setitem__(holder, place, None)
        return ""
    if dict in bases:
        of_dict: Any = collections.OrderedDict if collections.OrderedDict in bases else dict
        for key, value in list(dict.items(holder)):
            if value is held:
                of_dict.__delitem__(holder, key)
        return ""
    if type(holder) is LRU_CACHE and type(held) is dict:
        LRU_CACHE.cache_clear(holder)
        return ""
    return f"Python cannot make this cut: a {type(holder).__name__} cannot be changed"


def _closure(holder: Any, _held: Any, name: str) -> str:
    for variable, cell in zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=False):
        if f"closure {variable}" == name:
            del cell.cell_contents
            return ""
    return f"Python cannot make this cut: {name} is no variable of {holder.__qualname__}"


def _local(holder: Any, held: Any, name: str) -> str:
    return "" if forget_variable(holder, name.removeprefix("local "), held) else CANNOT


def _hooks(_holder: Any, held: Any, _name: str) -> str:
    """As `remove()` of each hook's handle does.

    A tensor given None as its hooks may keep them (python_variable.cpp).
    """
    if type(held) in (dict, collections.OrderedDict):
        held.clear()
        return ""
    return CANNOT


_CUTTERS: dict[ReferenceKind, Callable[[Any, Any, str], str]] = {
    ReferenceKind.ATTRIBUTE: _attribute,
    ReferenceKind.BUFFER: _attribute,
    ReferenceKind.ITEM: _item,
    ReferenceKind.CLOSURE: _closure,
    ReferenceKind.LOCAL: _local,
    ReferenceKind.HOOK: _hooks,
}
