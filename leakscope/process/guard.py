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

from leakscope.native import unheard as built
from leakscope.originals import _thread, os, signal, time
from leakscope.shield import raised_later


class Mark(list[bool]):
    """Empty, and so false, until something has come to pass; true from then on.

    To be kept, and tested like a truth value whenever the question comes up: that runs no line of Python.
    """

    __slots__ = ("__weakref__",)


_CURRENT = [Mark()]
"""The mark of this process; the only entry."""
_OTHERS: list[weakref.ref[Mark]] = []
"""Those that mean something else as well."""


def in_forked_child() -> Mark:
    """True in every process that is forked, from now on, from the one where it was asked for."""
    return _CURRENT[0]


def also_in_forked_child() -> Mark:
    """A mark of one's own: true as soon as its owner makes it so, and in every process that is forked from now on."""
    mark = Mark()
    _OTHERS[:] = [other for other in _OTHERS if other() is not None]
    _OTHERS.append(weakref.ref(mark))
    return mark


def _forked() -> None:
    # whoever holds them made them before the fork
    marks = [_CURRENT[0], *(other() for other in _OTHERS)]
    _CURRENT[0] = Mark()
    _OTHERS.clear()
    for mark in marks:
        if mark is not None:
            mark.append(True)


os.register_at_fork(after_in_child=_forked)


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


_CLOCK_REALTIME_COARSE = 5
"""In Linux's linux/time.h: the time of the kernel's last tick, at most 10 ms ago."""


def _wall_time(read: Callable[[int], float] = time.clock_gettime) -> float:
    """Seconds since the epoch.

    time_machine changes `time.time` and CLOCK_REALTIME in C, for every holder of the functions, but not this clock.
    """
    return read(_CLOCK_REALTIME_COARSE)


@dataclass(frozen=True, slots=True)
class Clock:
    """The functions of `time` as they were when this was imported, ahead of the script."""

    wall_time: Callable[[], float] = _wall_time
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    perf_counter: Callable[[], float] = time.perf_counter
    thread_time: Callable[[], float] = time.thread_time


CLOCK = Clock()


_MAX_LETTERS = 300
"""Letters of an error's text that are told."""
_SOON_S = 0.001
"""Seconds, chosen, after which an interrupt comes again that reached us where Python would have dropped it."""


def say_on_stderr(text: str) -> None:
    """A line of leakscope's, past whatever the script has made of `sys.stderr`."""
    with suppress(OSError):  # it may have closed that
        os.write(2, f"leakscope: {text}\n".encode())


class Guard:
    """Of one recording. `deaf` is to be tested ahead of all that leakscope does for it."""

    def __init__(self, say: Callable[[str], object] = say_on_stderr) -> None:
        self.deaf = also_in_forked_child()
        """True once recording has ended for an error of leakscope's own, and in every process forked since."""
        self.lost = False
        """Recording has ended so."""
        self.why = ""
        """The sentence that tells it."""
        self.entries: set[str] = set()
        """The names of what the script can call of leakscope's, as far as that was put in."""
        self.steps: Callable[[], int] = lambda: 0
        """How many have ended."""
        self.at_end: list[Callable[[str], object]] = []
        """Each is called with the sentence when recording ends so, and what it raises is of no account."""
        self.later: list[Callable[[], object]] = []
        """What could not be done there, as taking out a dispatch mode that runs: tried again when the script comes by,
        until it does not answer False."""
        self.weightless: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
        """Makes of a function one that gc's count of young objects does not feel."""
        self._say = say
        self._once = _thread.allocate_lock()

    # what the script calls

    def entry(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """The same function, known as what the script can call, and unheard; to be called inside of `try` alone."""
        return unheard(self.known(name, function))

    def known(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """The same function, by the name by which a fault in it is told."""
        self.entries.add(name)
        return function

    def guarded(
        self, name: str, function: Callable[..., Any], then: Callable[[Any], object] | None = None
    ) -> Callable[..., Any]:
        """A function that never raises an error of ours; None where there was one, or nobody listens any more.

        `then` is a guarded function itself: it gets what is answered, if that is not None, once the arguments are let
        go of, which a look must not find here.
        """
        function, deaf = self.known(name, function), self.deaf

        def entered(*args: Any, **kwargs: Any) -> Any:
            if deaf:
                if self.later:
                    self.try_again()
                return None
            try:
                answer = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                self.fault(name, error)
                return None
            if then is None or answer is None:
                return answer
            del args, kwargs
            return then(answer)

        return unheard(entered)

    def call(self, name: str, function: Callable[..., T], *args: Any, even_lost: bool = False) -> T | None:
        """What `function` gives; None where it raised an error of ours, or nobody listens any more."""
        if self.deaf and not even_lost:
            return None
        try:
            return self.entry(name, function)(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
            self.fault(name, error)
            return None

    def callback(self, name: str, function: Callable[..., object]) -> Callable[..., None]:
        """As `guarded`, for what Python calls where it prints and drops what is raised, as from a weak reference.

        An exception of the script's, as its signal handlers raise, is raised by its own next instructions.
        """
        function, deaf = self.known(name, function), self.deaf

        def called(*args: Any) -> None:
            if deaf:
                return
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                self.fault(name, error)

        later = raised_later(unheard(called))
        if later is not None:
            return later

        def interrupted(*args: Any) -> None:
            try:
                called(*args)
            except KeyboardInterrupt:  # the user's: it comes again where it can be raised
                _thread.start_new_thread(_interrupt, ())

        return unheard(interrupted)

    def thread(self, name: str, run: Callable[[], object]) -> None:
        """Start a thread below `threading`, so that the script does not find it among its own."""
        _thread.start_new_thread(unheard(self.guarded(name, run), lasting=True), ())

    # when something of ours is wrong

    def fault(self, name: str, error: Exception) -> None:
        """End the recording; to be called while the error, raised by what goes by this name, is handled.

        Raises it again where it is the script's: raised by a signal handler of its own that ran in the middle of us.
        """
        if is_the_scripts(error):
            raise error
        if self.deaf or not self._once.acquire(blocking=False):
            return
        self.lost = True
        self.deaf.append(True)
        try:
            self.why = sentence = f"recording ended at step {self.steps()}: {_told(error)} (in {name})"
            for end in self.at_end:
                with suppress(Exception):  # the next may still do its part
                    end(sentence)
            self._say(f"{sentence}; the script runs on")
        except Exception:  # noqa: BLE001 - there is not even memory to tell it
            return

    def let_go(self) -> None:
        """Recording is over: nobody listens, nor is anything of it known here: what cannot be taken out holds this."""
        self.deaf.append(True)
        self.steps = lambda: 0
        self.at_end.clear()
        self.later.clear()

    def try_again(self) -> None:
        """Do what is left over from the end of the recording, as far as that is possible now."""
        waiting, self.later = self.later, []
        for each in waiting:
            with suppress(Exception):  # deaf as it is, it may stay
                if each() is False:
                    self.later.append(each)


def _told(error: Exception) -> str:
    """`RuntimeError: no such thing`, on one line."""
    text = " ".join(str(error).split())[:_MAX_LETTERS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _interrupt() -> None:
    CLOCK.sleep(_SOON_S)
    _thread.interrupt_main()


def is_the_scripts(error: BaseException) -> bool:
    """Whether a handler that the script has set was running when this was raised, as one that ends what takes long."""
    handlers = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    trace = error.__traceback__ if handlers else None
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> CodeType | None:
    """The code of a handler of Python's."""
    while isinstance(handler, (partial, MethodType)):
        handler = handler.func if isinstance(handler, partial) else handler.__func__
    return handler.__code__ if isinstance(handler, FunctionType) else None
