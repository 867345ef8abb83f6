"""What becomes of an error of leakscope's own? Recording ends, one sentence tells it, and the script runs on.

Whatever the script, torch or Python calls of leakscope's goes through a guard. Where nothing is raised that costs
nothing but, where calls are rare, a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, ParamSpec, TypeVar

from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.forks import also_in_forked_child
from leakscope.capture.process.unheard import unheard
from leakscope.originals import _thread, os, signal
from leakscope.shield import raised_later

T = TypeVar("T")
P = ParamSpec("P")
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
