"""Calls of which the script's trace and profile functions, debuggers and coverage hear nothing.

CPython calls neither sys.settrace's, sys.setprofile's and cProfile's functions nor sys.monitoring's while a thread
traces, as for what they call themselves; PyThreadState_EnterTracing says that it does (Python/pystate.c, since 3.11).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from leakscope.native import unheard as built

P = ParamSpec("P")
T = TypeVar("T")


def unheard(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, to be called where nobody is to hear of it and of what it calls; in the calling thread.

    Where the part in C was not built they hear of one call more, of a function of this file.
    """
    in_c = built()
    return cast("Callable[P, T]", in_c.Call(function)) if in_c is not None else _between(function, _enter, _leave)


def heard(function: Callable[P, T]) -> Callable[P, T]:
    """The same function for what is called through an unheard one and is the script's own."""
    in_c = built()
    if in_c is not None:
        return cast("Callable[P, T]", in_c.Call(function, heard=True))
    return _between(function, _leave, _enter)


def _between(function: Callable[P, T], before: Callable[[], object], after: Callable[[], object]) -> Callable[P, T]:
    @wraps(function, updated=())
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        before()
        try:
            return function(*args, **kwargs)
        finally:
            after()

    return call


_api: Any = ctypes.PyDLL(None)  # one of our own: the script may set other types on ctypes.pythonapi's functions
_this_thread = _api.PyThreadState_Get
_this_thread.restype, _this_thread.argtypes = ctypes.c_void_p, []
_enter_tracing, _leave_tracing = _api.PyThreadState_EnterTracing, _api.PyThreadState_LeaveTracing
for _function in (_enter_tracing, _leave_tracing):
    _function.restype, _function.argtypes = None, [ctypes.c_void_p]


def _enter() -> None:
    _enter_tracing(_this_thread())


def _leave() -> None:
    _leave_tracing(_this_thread())
