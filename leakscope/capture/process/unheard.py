"""Calls of which the script's trace and profile functions, debuggers and coverage hear nothing.

CPython calls neither sys.settrace's, sys.setprofile's and cProfile's functions nor sys.monitoring's while a thread
traces, as for what they call themselves; PyThreadState_EnterTracing says that it does (Python/pystate.c, since 3.11).
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from leakscope.native import unheard as built

P = ParamSpec("P")
T = TypeVar("T")


def unheard(function: Callable[P, T], *, lasting: bool = False) -> Callable[P, T]:
    """The same function, to be called where nobody is to hear of it and of what it calls; in the calling thread.

    Where the part in C was not built they hear of functions of this file; and of the rest too if none of them is there
    when it is called, unless it is `lasting`.
    """
    in_c = built()
    if in_c is not None:
        return cast("Callable[P, T]", in_c.Call(function))
    return _between(function, _enter, _leave, lasting)


def heard(function: Callable[P, T]) -> Callable[P, T]:
    """The same function for what is called through an unheard one and is the script's own."""
    in_c = built()
    if in_c is not None:
        return cast("Callable[P, T]", in_c.Call(function, heard=True))
    return _between(function, _leave, _enter)


def _between(
    function: Callable[P, T], before: Callable[[], object], after: Callable[[], object], lasting: bool = False
) -> Callable[P, T]:
    listens = _somebody_listens  # a global of this module is None when the interpreter ends, and weak references call

    @wraps(function, updated=())
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not lasting and not listens():
            return function(*args, **kwargs)
        before()
        try:
            return function(*args, **kwargs)
        finally:
            after()

    return call


def _asking() -> Callable[[], bool]:
    tools = range(6 if sys.version_info >= (3, 12) else 0)  # the numbers of sys.monitoring's
    tool: Callable[[int], object] = getattr(getattr(sys, "monitoring", None), "get_tool", lambda _: None)
    profile, trace = sys.getprofile, sys.gettrace

    def asked() -> bool:
        return profile() is not None or trace() is not None or any(map(tool, tools))

    return asked


_somebody_listens = _asking()
"""Whether the script has set a function that hears of calls, or a tool of sys.monitoring's (CPython 3.12) has."""
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


CODE_OF_CALLS = frozenset({_between(operator.call, _enter, _leave).__code__})
"""The code of what stands around a function where the part in C was not built: while C runs in such a call, this is the
innermost code of the thread."""

call_heard = heard(operator.call)
"""Calls the function that it is given first: one of the script's, or of torch's, which may call the script's."""
