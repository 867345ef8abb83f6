"""Where classes and modules are defined, and attributes that setters make."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from leakscope.graph.ownership import is_built_with
from leakscope.process.raw_types import mro, qualified_name, type_dict, type_qualname
from leakscope.process.source import user_code as source
from leakscope.process.source.user_code import MAIN, newest_first

_module_dict = type_dict(types.ModuleType)["__dict__"].__get__


def module_dict(module: Any) -> dict[str, Any]:
    """A module's namespace, without asking its own `__getattribute__`."""
    namespace: dict[str, Any] = _module_dict(module)
    return namespace


def globals_of_spawned_main() -> dict[str, Any] | None:
    """The namespace that the functions of a spawned process's script have; None in any other process.

    Its `__main__` is a copy of what runpy has made of the script (CPython Lib/multiprocessing/spawn.py,
    `_fixup_main_from_path`), so a variable of the script is there twice.
    """
    main = sys.modules.get("__mp_main__")
    if main is None or type(main) is not types.ModuleType:
        return None
    copy = module_dict(main)
    for value in list(copy.values()):
        if type(value) is types.FunctionType and value.__globals__ is not copy:
            own = value.__globals__
            if own.get("__name__") == "__mp_main__":
                return own
    return None


def module_file(module: Any) -> str:
    """The file that a module was read from, "" for what has none or is no module."""
    if module is None or types.ModuleType not in mro(type(module)):
        return ""
    filename = module_dict(module).get("__file__")
    return filename if type(filename) is str else ""


def class_file(kind: type) -> str:
    """The file that defines a class, or the cell that did so last; "" for one written in C."""
    module = type_dict(kind).get("__module__")
    if type(module) is not str:
        return ""
    file = module_file(sys.modules.get(module))
    if file or module != MAIN:
        return file
    return next((cell for cell in newest_first() if source.class_line(cell, type_qualname(kind))), "")


def package_base(kind: type) -> str:
    """`torchmetrics.metric.Metric`: the nearest class of an installed package that a class of the user's derives from.

    "" where none is, but for torch's and Python's own.
    """
    for base in mro(kind)[1:]:
        name, filename = qualified_name(base), class_file(base)
        if filename and not is_built_with(name) and not source.is_users(filename):
            return name
    return ""


def class_where(kind: type) -> str:
    """`train.py:12`, the line that defines a class of the user's; "" for any other."""
    filename = class_file(kind)
    if not filename or not source.is_users(filename):
        return ""
    name = type_qualname(kind)
    line = source.class_line(filename, name) or source.local_line(filename, "", name)  # `Batch = namedtuple(...)`
    return source.at(filename, line) if line else ""


_BY_NAME = frozenset(
    {"__setattr__", "setattr", "__dict__", "register_buffer", "register_module", "register_parameter", "add_module"}
)
"""What sets an attribute whose name it is given as text."""
_FIELDS = (MemberDescriptorType, GetSetDescriptorType)
"""What has room of its own in an instance, as `args` in a partial."""
_WRAPPERS = (staticmethod, classmethod)


def package_that_sets(kind: type, name: str) -> str:
    """`gpytorch`, where code in a class of that installed package sets it, `kind` or one that it derives from.

    "" where no class is seen to, and where the user's own is the first that does.
    """
    for base in mro(kind):
        filename = class_file(base)
        if type(type_dict(base).get(name)) in _FIELDS or any(_sets(code, name) for code in _codes(base)):
            return "" if not filename or source.is_users(filename) else qualified_name(base).partition(".")[0]
    return ""


def _codes(kind: type) -> Iterator[CodeType]:
    """Of the methods in a class's own body, and of what decorators were put around."""
    for name, value in list(type_dict(kind).items()):
        parts: tuple[Any, ...] = (value.fget, value.fset) if type(value) is property else (value,)
        for part in parts:
            yield from _codes_of(part.__func__ if type(part) in _WRAPPERS else part, name)


def _codes_of(value: Any, name: str) -> Iterator[CodeType]:
    seen: list[Any] = []
    found = [value]
    while found:
        function = found.pop()
        if type(function) is FunctionType and not any(function is one for one in seen):
            seen.append(function)
            yield function.__code__
            found += [function.__dict__.get("__wrapped__"), *_replaced(function, name)]


def _replaced(function: FunctionType, name: str) -> Iterator[Any]:
    """The method of this name that a function stands for without a word: torch.compile has one for every module's
    `__init__` (torch/_dynamo/mutation_guard.py).
    """
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            held = cell.cell_contents
            if type(held) is FunctionType and held.__name__ == name:
                yield held


def _sets(code: CodeType, name: str) -> bool:
    if name in code.co_consts and not _BY_NAME.isdisjoint(code.co_names):
        return True
    if name not in code.co_names:
        return False
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code))
