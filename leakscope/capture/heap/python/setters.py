"""Which package's code sets this attribute of its instances?"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from leakscope.capture.heap.python.classes import class_file
from leakscope.capture.heap.raw_types import mro, qualified_name, type_dict
from leakscope.capture.source import user_source as source

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
