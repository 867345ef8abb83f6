"""Which line of the user's makes this reference?"""

from __future__ import annotations

from types import CodeType, FrameType, FunctionType
from typing import Any

from leakscope.capture.heap.python.classes import class_file
from leakscope.capture.heap.raw_types import type_dict, type_qualname
from leakscope.capture.source import user_source as source
from leakscope.capture.source.notebook import is_of_session, newest_first
from leakscope.capture.torch_private import BACKWARD_OF
from leakscope.graph.model import ReferenceKind


def line_of_namespace(namespace: dict[str, Any], name: str, last: bool) -> str:
    """`train.py:12`, where a module's global of this name is bound; "" where no line shows it. As for the others below.

    `last` asks for the line that binds it last: a tensor is held by the assignment made last, while a container is
    made once and then filled. In a notebook it is the cell that ran last of those that bind it.
    """
    filename = namespace.get("__file__")
    if is_of_session(namespace):
        bound = ((cell, source.local_line(cell, "", name, last)) for cell in newest_first())
        return next((source.at(cell, line) for cell, line in bound if line), "")
    if type(filename) is not str or not source.is_users(filename):
        return ""
    return _at(filename, source.local_line(filename, "", name, last))


def line_of_class(kind: type, name: str, last: bool) -> str:
    """Where a class gets this attribute."""
    kind = _written_as(kind)
    filename = class_file(kind)
    if not source.is_users(filename):
        return ""
    return _at(filename, source.class_attribute_line(filename, type_qualname(kind), name, last))


def line_of_instance(kind: type, name: str, last: bool) -> str:
    """Where instances of a class get this attribute."""
    kind = _written_as(kind)
    filename = class_file(kind)
    if not source.is_users(filename):
        return ""
    return _at(filename, source.attribute_line(filename, type_qualname(kind), name, last))


def line_of_variable(owner: Any, kind: ReferenceKind, name: str, last: bool) -> str:
    """Where a frame binds a local, or the function around it a variable that an inner one closes over."""
    if kind == ReferenceKind.LOCAL and type(owner) is FrameType:
        return _of_local(owner.f_code, name.removeprefix("local "), last)
    if kind == ReferenceKind.CLOSURE and type(owner) is FunctionType and " " in name:
        return _of_closure(owner.__code__, name.split(" ")[1], last)
    return ""


def _of_local(code: CodeType, name: str, last: bool) -> str:
    if not source.is_users(code.co_filename):
        return ""
    return _at(code.co_filename, source.local_line(code.co_filename, code.co_qualname, name, last))


def _of_closure(code: CodeType, name: str, last: bool) -> str:
    outer = code.co_qualname.rpartition(".<locals>.")[0]
    if not outer or not source.is_users(code.co_filename):
        return ""
    bound = source.local_line(code.co_filename, outer, name, last, arguments=False)
    return _at(code.co_filename, bound or code.co_firstlineno)  # an argument is bound by whoever calls


def _written_as(kind: type) -> type:
    """The user's class for the one that torch makes of an autograd Function (torch/autograd/function.py)."""
    forward = type_dict(kind).get(BACKWARD_OF)
    return forward if isinstance(forward, type) else kind


def _at(filename: str, line: int) -> str:
    return source.at(filename, line) if line else ""
