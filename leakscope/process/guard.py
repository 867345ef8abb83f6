"""Keeps errors of leakscope out of the script, and recognises forked processes."""

from __future__ import annotations

import ctypes
import operator
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from types import CodeType, FunctionType, MethodType
from typing import Any, ParamSpec, TypeVar, cast

from leakscope.native import untraced as built
from leakscope.originals import _thread, os, signal, time
from leakscope.shield import raised_later


class ForkFlag(list[bool]):
    """A flag that is empty, and so false, until it is set, and true from then on.

    Testing its truth value runs no Python code.
    """

    __slots__ = ("__weakref__",)


_CURRENT = [ForkFlag()]
"""The flag of this process; the only entry."""
_FORK_FLAGS: list[weakref.ref[ForkFlag]] = []
"""Flags that are also set by their owner."""


def in_forked_child() -> ForkFlag:
    """Return a flag that is true in every process forked from this one after the call."""
    return _CURRENT[0]


def also_in_forked_child() -> ForkFlag:
    """Return a flag that its owner can set, and that is true in every process forked after the call."""
    mark = ForkFlag()
    _FORK_FLAGS[:] = [other for other in _FORK_FLAGS if other() is not None]
    _FORK_FLAGS.append(weakref.ref(mark))
    return mark


def _forked() -> None:
    # made by their holders before the fork
    marks = [_CURRENT[0], *(other() for other in _FORK_FLAGS)]
    _CURRENT[0] = ForkFlag()
    _FORK_FLAGS.clear()
    for mark in marks:
        if mark is not None:
            mark.append(True)


os.register_at_fork(after_in_child=_forked)


P = ParamSpec("P")
T = TypeVar("T")


def untraced(function: Callable[P, T], *, lasting: bool = False) -> Callable[P, T]:
    """Return the function so that profile, trace and monitoring hooks do not see it and what it calls, in the calling
    thread.

    Without the C part, hooks see functions of this file, and everything else if no hook is set when it is called,
    unless it is `lasting`.
    """
    in_c = built()
    if in_c is not None:
        return cast("Callable[P, T]", in_c.Call(function))
    return _between(function, _enter, _leave, lasting)


def traced(function: Callable[P, T]) -> Callable[P, T]:
    """Re-enable hooks for code of the script that is called through an untraced function."""
    in_c = built()
    if in_c is not None:
        return cast("Callable[P, T]", in_c.Call(function, retrace=True))
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


def _tool_check() -> Callable[[], bool]:
    tools = range(6 if sys.version_info >= (3, 12) else 0)  # the numbers of sys.monitoring's
    tool: Callable[[int], object] = getattr(getattr(sys, "monitoring", None), "get_tool", lambda _: None)
    profile, trace = sys.getprofile, sys.gettrace

    def in_use() -> bool:
        return profile() is not None or trace() is not None or any(map(tool, tools))

    return in_use


_somebody_listens = _tool_check()
"""Whether the script has set a trace or profile function, or uses sys.monitoring (CPython 3.12)."""
_api: Any = ctypes.PyDLL(None)  # private: the script may set other types on ctypes.pythonapi's functions
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
"""Code object of the wrapper used without the C part: the innermost code of the thread while C code runs in such a
call.
"""

call_traced = traced(operator.call)
"""Call the given function with hooks enabled: one of the script, or of torch, which may call the script."""


_CLOCK_REALTIME_COARSE = 5
"""From linux/time.h: the time of the kernel's last tick, at most 10 ms ago."""


def _wall_time(read: Callable[[int], float] = time.clock_gettime) -> float:
    """Seconds since the epoch.

    time_machine replaces `time.time` and CLOCK_REALTIME in C, for every holder of the functions, but not this clock.
    """
    return read(_CLOCK_REALTIME_COARSE)


@dataclass(frozen=True, slots=True)
class Clock:
    """The functions of `time` as imported before the script."""

    wall_time: Callable[[], float] = _wall_time
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    perf_counter: Callable[[], float] = time.perf_counter
    thread_time: Callable[[], float] = time.thread_time


CLOCK = Clock()


_MAX_LETTERS = 300
"""Maximum characters of an error message that are reported."""
_SOON_S = 0.001
"""Seconds after which an interrupt is raised again if it arrived where Python would drop it. Heuristic."""


def write_to_stderr(text: str) -> None:
    """Write a line of leakscope to the original stderr, regardless of the script's `sys.stderr`."""
    with suppress(OSError):  # the script may have closed it
        os.write(2, f"leakscope: {text}\n".encode())


class Guard:
    """Guards one recording. Test `disabled` before anything is done for it."""

    def __init__(self, report: Callable[[str], object] = write_to_stderr) -> None:
        self.disabled = also_in_forked_child()
        """Whether recording has ended because of an internal error, or in a forked process."""
        self.lost = False
        """Whether recording has ended because of an internal error."""
        self.why = ""
        """The sentence that reports the error."""
        self.entries: set[str] = set()
        """Names of leakscope's functions that the script can call."""
        self.steps: Callable[[], int] = lambda: 0
        """Number of steps that have ended."""
        self.at_end: list[Callable[[str], object]] = []
        """Functions called with the sentence when recording ends by an error; their errors are ignored."""
        self.later: list[Callable[[], object]] = []
        """Actions that were not possible then, such as removing an active dispatch mode; retried until they do not
        return False.
        """
        self.gc_neutral: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
        """Wraps a function so that it does not change gc's count of young objects."""
        self._report = report
        self._once = _thread.allocate_lock()

    # functions that the script calls

    def untraced(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """Register and untrace a function that the script can call; call it inside `try` only."""
        return untraced(self.register(name, function))

    def register(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """Register a function under the name used to report an error in it."""
        self.entries.add(name)
        return function

    def guarded(
        self, name: str, function: Callable[..., Any], then: Callable[[Any], object] | None = None
    ) -> Callable[..., Any]:
        """Wrap a function so that no error of leakscope is raised; None after an error or the end of recording.

        `then` is a guarded function too: it receives the result, unless None, after the arguments are released, so that
        a heap snapshot does not find them here.
        """
        function, disabled = self.register(name, function), self.disabled

        def entered(*args: Any, **kwargs: Any) -> Any:
            if disabled:
                if self.later:
                    self.try_again()
                return None
            try:
                answer = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                self.internal_error(name, error)
                return None
            if then is None or answer is None:
                return answer
            del args, kwargs
            return then(answer)

        return untraced(entered)

    def call(self, name: str, function: Callable[..., T], *args: Any, even_lost: bool = False) -> T | None:
        """Call the function; None after an error of leakscope or the end of recording."""
        if self.disabled and not even_lost:
            return None
        try:
            return self.untraced(name, function)(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
            self.internal_error(name, error)
            return None

    def finalizer_safe(self, name: str, function: Callable[..., object]) -> Callable[..., None]:
        """As `guarded`, for callbacks whose exceptions Python prints and drops, such as those of weak references.

        An exception of the script, raised by its signal handler, is raised again in the script's next instructions.
        """
        function, disabled = self.register(name, function), self.disabled

        def called(*args: Any) -> None:
            if disabled:
                return
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                self.internal_error(name, error)

        later = raised_later(untraced(called))
        if later is not None:
            return later

        def interrupted(*args: Any) -> None:
            try:
                called(*args)
            except KeyboardInterrupt:  # the user's: raised again where that is possible
                _thread.start_new_thread(_interrupt, ())

        return untraced(interrupted)

    def thread(self, name: str, run: Callable[[], object]) -> None:
        """Start a thread below `threading`, so that the script does not find it among its own."""
        _thread.start_new_thread(untraced(self.guarded(name, run), lasting=True), ())

    # after an internal error

    def internal_error(self, name: str, error: Exception) -> None:
        """End the recording; called while handling the error of the named function.

        Raises the error again if it belongs to the script: its signal handler ran inside leakscope.
        """
        if is_the_scripts(error):
            raise error
        if self.disabled or not self._once.acquire(blocking=False):
            return
        self.lost = True
        self.disabled.append(True)
        try:
            self.why = sentence = f"recording ended at step {self.steps()}: {_error_text(error)} (in {name})"
            for end in self.at_end:
                with suppress(Exception):  # the others may still succeed
                    end(sentence)
            self._report(f"{sentence}; the script runs on")
        except Exception:  # noqa: BLE001 - there is not even memory to tell it
            return

    def release(self) -> None:
        """End the recording: disable all hooks and drop references."""
        self.disabled.append(True)
        self.steps = lambda: 0
        self.at_end.clear()
        self.later.clear()

    def try_again(self) -> None:
        """Retry what could not be removed at the end of the recording."""
        waiting, self.later = self.later, []
        for each in waiting:
            with suppress(Exception):  # disabled, it may stay
                if each() is False:
                    self.later.append(each)


def _error_text(error: Exception) -> str:
    """An exception on one line, as `RuntimeError: no such thing`."""
    text = " ".join(str(error).split())[:_MAX_LETTERS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _interrupt() -> None:
    CLOCK.sleep(_SOON_S)
    _thread.interrupt_main()


def is_the_scripts(error: BaseException) -> bool:
    """Whether this was raised by a signal handler of the script, such as a timeout."""
    handlers = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    trace = error.__traceback__ if handlers else None
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> CodeType | None:
    """The code object of a Python handler."""
    while isinstance(handler, (partial, MethodType)):
        handler = handler.func if isinstance(handler, partial) else handler.__func__
    return handler.__code__ if isinstance(handler, FunctionType) else None
