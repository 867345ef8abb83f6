"""Which file and line define this class or module?"""

from __future__ import annotations

import sys
import types
from typing import Any

from leakscope.capture.heap.raw_types import mro, qualified_name, type_dict, type_qualname
from leakscope.capture.source import user_source as source
from leakscope.capture.source.notebook import MAIN, newest_first
from leakscope.graph.ownership import is_built_with

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
