"""How does a rank end that swallows the stop after N steps, is stuck, or outlives the process that started it?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.forks import in_forked_child
from leakscope.capture.process.guard import Guard
from leakscope.originals import _thread, os, signal
from leakscope.record.kinds import ORPHAN_STATUS

_TICK_INTERVAL_S = 0.1
"""Seconds between two ticks."""
_LAST_TICK_S = 30.0
"""Seconds, chosen, that the end of the recording waits for a tick that looks at the process."""
_TURN_S = 0.05
"""Seconds, chosen, in which each of a few threads has a turn: one lasts 5 ms (sys.getswitchinterval)."""
_GRACE_S = 30.0
"""Seconds that a script which answers SIGTERM has then: as many as torch's launcher gives a rank that it ends."""
_PR_SET_PDEATHSIG = 1
"""Of prctl(2), in Linux's linux/prctl.h."""


class Stop(BaseException):
    """Raised out of the step at which the run ends; no `except Exception` of the script's catches it."""


class Watchdog:
    """Looks at the clock from a thread of its own, for ranks that are stuck in native code or swallow the stop.

    The thread is started below `threading`, so the script does not find it among its own.
    """

    def __init__(
        self, over: Callable[[], bool], tick: Callable[[], None], leave: Callable[[], None], grace_s: float
    ) -> None:
        """`leave` is called where the run has been `over` for `grace_s` seconds and this process is still there."""
        self._over, self._tick, self._leave = over, tick, leave
        self._grace_s = grace_s
        self._ended = False
        self._ticking = _thread.allocate_lock()
        """Held by the thread during a tick."""
        self._thread = 0
        self._in_forked_child = in_forked_child()
        self._launcher = 0
        self._orphaned: Callable[[], object] = lambda: None

    def ends_with(self, launcher: int, orphaned: Callable[[], None]) -> None:
        """End this process once the one of that number is its parent no more; `orphaned` writes its last words."""
        self._launcher, self._orphaned = launcher, orphaned

    def start(self, guard: Guard) -> None:
        """Start the thread; an error of ours ends it."""
        self._tick = guard.guarded("tick of the watchdog", self._tick)
        self._orphaned = partial(guard.call, "last words of an orphan", self._orphaned, even_lost=True)
        guard.thread("watchdog thread", self._run)

    def end(self) -> None:
        """Let the thread end; what it is at is over when this returns, or has taken too long.

        At the interpreter's end a thread that asks for the GIL is ended where it stands (CPython up to 3.13, Python/
        ceval_gil.c, take_gil). In the middle of C++ of torch's that aborts the process; in its pause it does no harm.
        """
        self._ended = True
        if self._thread in (0, _thread.get_ident()) or self._in_forked_child:
            return
        if self._ticking.acquire(timeout=_LAST_TICK_S):
            self._ticking.release()

    def extend(self, seconds: float) -> None:
        """Give the rank more time: leakscope itself was at work that long."""
        self._grace_s += seconds

    def _run(self) -> None:
        self._thread = _thread.get_ident()
        since: float | None = None
        while not self._ended:
            CLOCK.sleep(_TICK_INTERVAL_S)
            if launcher_is_gone(self._launcher):
                self._orphaned()
                leave_as_terminated()  # not under the lock: a script that answers SIGTERM comes to its end meanwhile
            with self._ticking:
                if self._ended:
                    break
                self._tick()
            if since is None and self._over():
                since = CLOCK.monotonic()
            if since is not None and CLOCK.monotonic() - since > self._grace_s and not self._ended:
                self._leave()


def let_threads_go_on() -> None:
    """Give up the GIL for a moment, where the script has other threads.

    While we are at work they wait for the GIL wherever they asked for it. One that asked in the middle of an operation
    of torch's aborts the process if it gets no turn before the interpreter ends (`pthread_exit` unwinds through
    `~gil_scoped_release`, which must not raise: CPython up to 3.13, Python/ceval_gil.c; pybind11/gil.h).
    """
    if len(sys._current_frames()) > 1:
        CLOCK.sleep(_TURN_S)


def launcher_is_gone(launcher: int) -> bool:
    """Whether the process of this number is no longer this one's parent; False for 0, which is nobody's."""
    return launcher != 0 and os.getppid() != launcher


def known_launcher(launcher: int) -> int:
    """The launcher's number if it is this process's parent; 0 where something stands between them, as a wrapper does.

    Ends this process where the launcher is gone already.
    """
    if launcher_is_gone(launcher):
        try:
            os.kill(launcher, 0)
        except ProcessLookupError:
            leave_now(ORPHAN_STATUS)
        except OSError:
            return 0
        return 0
    return launcher


def end_with_launcher(launcher: int, by: signal.Signals | None = signal.SIGTERM) -> None:
    """Have the kernel send this signal to this process when its launcher ends; None takes that back.

    For when no thread of ours asks: ahead of `import torch`, and after the script's end. To be called on the main
    thread, whose the setting is (kernel/exit.c, reparent_leader); children that are forked do not inherit it.
    """
    if launcher:
        with suppress(Exception):  # no Linux, no ctypes: then nobody is told
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(by or 0), 0, 0, 0)
            if by is not None and launcher_is_gone(launcher):  # it went before that was set
                leave_now(ORPHAN_STATUS)


def leave_as_terminated() -> None:
    """End this process as SIGTERM does, which a handler of the script's own may answer first."""
    if callable(signal.getsignal(signal.SIGTERM)):
        os.kill(os.getpid(), signal.SIGTERM)
        CLOCK.sleep(_GRACE_S)
    leave_now(ORPHAN_STATUS)


def leave_now(status: int) -> None:
    """End the process at once, without waiting for anybody; what the script has printed is not lost."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(status)
