"""What do functions, frames, generators, tracebacks and exceptions hold?"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from leakscope.capture.heap.python.named import ATTRIBUTE, CLOSURE, LOCAL, Named, Reader, c_fields
from leakscope.capture.heap.raw_types import made_in_python, mro
from leakscope.originals import gc

_CO_OPTIMIZED = 0x1
"""Flag of a function's code, whose locals are its own, not a namespace's (CPython Include/cpython/code.h)."""


def function(obj: Any) -> Iterator[Named]:
    """The variables a function closes over by name, its defaults, its module's globals."""
    get = types.FunctionType.__dict__
    code = get["__code__"].__get__(obj)
    for name, cell in zip(code.co_freevars, get["__closure__"].__get__(obj) or (), strict=False):
        yield CLOSURE, f"closure {name}", cell
    yield CLOSURE, "closure", get["__closure__"].__get__(obj)
    named = [(f".{name}", get[name].__get__(obj)) for name in _OF_FUNCTIONS]
    yield from ((ATTRIBUTE, name, held) for name, held in named)
    known = {id(held) for _, held in named} | {id(get["__closure__"].__get__(obj))}
    for held in gc.get_referents(obj):  # reading __annotations__ would make a dict of them
        if (type(held) is dict or type(held) is tuple) and id(held) not in known:
            yield ATTRIBUTE, ".__annotations__", held


_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__", "__dict__", "__globals__", "__builtins__")


def cell(obj: Any) -> Iterator[Named]:
    """The variable that a closure cell stands for."""
    try:
        yield CLOSURE, "cell", obj.cell_contents
    except ValueError:  # an empty cell
        return


_OWNERS_OF_LOCALS = 4
"""References to the dict of `f_locals` that are nobody's: the frame's, the name's, the argument's; and the one of the
sweep's list, where an earlier read has left the empty dict."""


def frame_locals(frame: types.FrameType) -> dict[str, Any]:
    """The locals of a frame, leaving no dict behind that would keep them alive.

    Up to Python 3.12 `f_locals` fills a dict that stays with the frame; it is emptied again unless it is a
    namespace (module, class body) or somebody else holds it (`locals()` was called there). PEP 667 ends this.
    """
    if not frame.f_code.co_flags & _CO_OPTIMIZED:
        return {}
    by_name = frame.f_locals
    values = dict(by_name)
    if sys.version_info < (3, 13) and sys.getrefcount(by_name) <= _OWNERS_OF_LOCALS:
        by_name.clear()
    return values


def frame(obj: types.FrameType) -> Iterator[Named]:
    """Locals, the frame that called, the function that runs."""
    for name, value in frame_locals(obj).items():
        yield LOCAL, f"local {name}", value
    if obj.f_back is not None:
        yield ATTRIBUTE, ".f_back", obj.f_back
    yield from _called(obj, obj.f_code)


def _called(obj: Any, code: types.CodeType) -> Iterator[Named]:
    """The function whose frame this is: since Python 3.11 the frame keeps it alive, under no name."""
    for held in gc.get_referents(obj):
        if type(held) is types.FunctionType and types.FunctionType.__dict__["__code__"].__get__(held) is code:
            yield ATTRIBUTE, "its function", held


def suspended(prefix: str) -> Reader:
    """Generators, coroutines and async generators: their frame's locals as their own."""

    def read(obj: Any) -> Iterator[Named]:
        held = getattr(obj, f"{prefix}_frame")
        if held is not None:
            for name, value in frame_locals(held).items():
                yield LOCAL, f"local {name}", value
            yield ATTRIBUTE, f".{prefix}_frame", held
            yield from _called(obj, held.f_code)
        waiting = getattr(obj, {"gi": "gi_yieldfrom", "cr": "cr_await", "ag": "ag_await"}[prefix])
        if waiting is not None:
            yield ATTRIBUTE, ".awaiting", waiting

    return read


def traceback(obj: types.TracebackType) -> Iterator[Named]:
    """The frame that was left, and the traceback of the one it had called."""
    yield ATTRIBUTE, ".tb_frame", obj.tb_frame
    if obj.tb_next is not None:
        yield ATTRIBUTE, ".tb_next", obj.tb_next


def exception(obj: BaseException) -> Iterator[Named]:
    """Its traceback, arguments and the exceptions it came from."""
    get = BaseException.__dict__
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        value = get[name].__get__(obj)
        if value is not None:
            yield ATTRIBUTE, f".{name}", value
    for base in mro(type(obj)):  # .value of StopIteration, .obj of AttributeError, .exceptions of a group, ...
        if not made_in_python(base):
            yield from c_fields(obj, base, hidden="__")
