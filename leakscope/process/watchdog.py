"""Ends ranks that hang or outlive their parent, and writes their stacks."""

from __future__ import annotations

import faulthandler
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from leakscope.bootstrap import RECORDING
from leakscope.originals import Path, _thread, os, signal
from leakscope.process.guard import CLOCK, Guard, in_forked_child
from leakscope.process.patches import Patches
from leakscope.run.descriptors import Descriptor
from leakscope.run.rows import ORPHAN_STATUS

_TICK_INTERVAL_S = 0.1
"""Seconds between two ticks."""
_LAST_TICK_S = 30.0
"""Seconds that the end of the recording waits for a tick that reads the process. Heuristic."""
_TURN_S = 0.05
"""Seconds in which each of a few threads gets a turn, which lasts 5 ms (sys.getswitchinterval). Heuristic."""
_GRACE_S = 30.0
"""Seconds that a script with a SIGTERM handler gets, as from torch's launcher."""
_PR_SET_PDEATHSIG = 1
"""Option of prctl(2), from linux/prctl.h."""


class Stop(BaseException):
    """Raised in the step at which the run ends; not caught by `except Exception`."""


class Watchdog:
    """A thread that checks deadlines, for ranks that are stuck in native code or swallow the stop.

    The thread is started below `threading`, so the script does not find it among its own.
    """

    def __init__(
        self, over: Callable[[], bool], tick: Callable[[], None], leave: Callable[[], None], grace_s: float
    ) -> None:
        """`leave` is called if the run has been `over` for `grace_s` seconds and this process is still running."""
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
        """End this process when the given process is no longer its parent; `orphaned` writes its last message."""
        self._launcher, self._orphaned = launcher, orphaned

    def start(self, guard: Guard) -> None:
        """Start the thread; an internal error ends it."""
        self._tick = guard.guarded("tick of the watchdog", self._tick)
        self._orphaned = partial(guard.call, "last words of an orphan", self._orphaned, even_lost=True)
        guard.thread("watchdog thread", self._run)

    def end(self) -> None:
        """Stop the thread; returns when its current tick is over or has taken too long.

        At interpreter exit a thread that requests the GIL is terminated on the spot (CPython up to 3.13, Python/
        ceval_gil.c, take_gil). Inside torch's C++ code that aborts the process; during its sleep it is harmless.
        """
        self._ended = True
        if self._thread in (0, _thread.get_ident()) or self._in_forked_child:
            return
        if self._ticking.acquire(timeout=_LAST_TICK_S):
            self._ticking.release()

    def extend(self, seconds: float) -> None:
        """Extend the deadline by time that leakscope itself used."""
        self._grace_s += seconds

    def _run(self) -> None:
        self._thread = _thread.get_ident()
        since: float | None = None
        while not self._ended:
            CLOCK.sleep(_TICK_INTERVAL_S)
            if launcher_is_gone(self._launcher):
                self._orphaned()
                leave_as_terminated()  # not under the lock: a script that handles SIGTERM ends meanwhile
            with self._ticking:
                if self._ended:
                    break
                self._tick()
            if since is None and self._over():
                since = CLOCK.monotonic()
            if since is not None and CLOCK.monotonic() - since > self._grace_s and not self._ended:
                self._leave()


def yield_to_threads() -> None:
    """Release the GIL for a moment if the script has other threads.

    Threads wait for the GIL wherever they requested it. One that waits inside an operation of torch aborts the process
    if it gets no turn before the interpreter ends (`pthread_exit` unwinds through `~gil_scoped_release`, which must not
    raise: CPython up to 3.13, Python/ceval_gil.c; pybind11/gil.h).
    """
    if len(sys._current_frames()) > 1:
        CLOCK.sleep(_TURN_S)


def launcher_is_gone(launcher: int) -> bool:
    """Whether the given process is no longer this one's parent; False for 0."""
    return launcher != 0 and os.getppid() != launcher


def known_launcher(launcher: int) -> int:
    """The launcher's process id if it is this process's parent; 0 if there is a process between them, such as a
    wrapper.

    Ends this process if the launcher is already gone.
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
    """Set or clear PR_SET_PDEATHSIG: the kernel sends this signal when the launcher ends; None clears it.

    For phases without a watchdog: before `import torch` and after the end of the script. Call it on the main thread, to
    which the setting belongs (kernel/exit.c, reparent_leader); forked children do not inherit it.
    """
    if launcher:
        with suppress(Exception):  # no Linux, no ctypes: then nobody is notified
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(by or 0), 0, 0, 0)
            if by is not None and launcher_is_gone(launcher):  # the parent ended before this was set
                leave_now(ORPHAN_STATUS)


def leave_as_terminated() -> None:
    """End this process as SIGTERM does, through a handler of the script if there is one."""
    if callable(signal.getsignal(signal.SIGTERM)):
        os.kill(os.getpid(), signal.SIGTERM)
        CLOCK.sleep(_GRACE_S)
    leave_now(ORPHAN_STATUS)


def leave_now(status: int) -> None:
    """End the process at once, without waiting; flushes what the script has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(status)


STACKS = "stack.txt"
_MAX_TICK_S = 0.5
"""Maximum seconds counted between two ticks: nothing can happen while the process is stopped."""
_FILE_TIME_ERROR_S = 0.1
"""Seconds by which the modification time of a file may be too early: file systems use the kernel's last tick."""
_TERMINATION_TIMEOUT_S = 3.0
"""Seconds in which a rank that was told to end is expected to react."""
_FRAMES_LEFT_OUT = (*RECORDING, "/leakscope/bootstrap.py", "<frozen ")


class StacksOnSignals:
    """Makes SIGTERM and SIGINT also write all Python stacks to a file: a rank stuck in native code runs no Python
    handler.

    The dump is made in C and then calls the previous handler. A handler that the script has set stays untouched, and
    one that it sets later replaces this one.
    """

    def __init__(self, path: Path, patches: Patches) -> None:
        try:
            self._file: Descriptor | None = Descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        except OSError:  # the disk is full, the limit of open files is reached, or the folder is gone
            self._file = None
            return
        patches.add("file for stacks", self._close)
        self._signals = [
            (number, plain)
            for number, plain in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler))
            if signal.getsignal(number) == plain
        ]
        for number, plain in self._signals:
            patches.add(f"stack on {number.name}", lambda number=number, plain=plain: _unregister(number, plain))  # type: ignore[misc]
            faulthandler.register(number, file=self._file.number, all_threads=True, chain=True)

    def keep(self) -> None:
        """Called at every tick: the script may have closed the file and reused its descriptor."""
        if self._file is not None and self._file.status() is None:
            self._file = None
            for number, plain in self._signals:
                _unregister(number, plain)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def _unregister(number: signal.Signals, plain: object) -> None:
    # unregistering restores the previous handler, which must not undo one that the script has set since
    if signal.getsignal(number) == plain:
        faulthandler.unregister(number)


def stack_of_thread(ident: int) -> tuple[str, ...]:
    """Lines of a thread's Python stack, innermost call last, without leakscope's frames."""
    frame = sys._current_frames().get(ident)
    lines = traceback.format_stack(frame) if frame is not None else []
    return tuple(
        line.rstrip()
        for block in lines
        if not any(part in block for part in _FRAMES_LEFT_OUT)
        for line in block.splitlines()
    )


def stacks_of_threads() -> tuple[str, ...]:
    """Lines of the Python stacks of all threads except the current one, main thread first, each with a heading."""
    # not `threading.enumerate`: its lock may be held, and is cooperative under gevent
    active = list(threading._active.values())  # type: ignore[attr-defined]
    names = {thread.ident: thread.name for thread in active}
    stacks: list[str] = []
    for ident in sorted(sys._current_frames(), key=lambda ident: ident != threading.main_thread().ident):
        lines = stack_of_thread(ident)
        if lines and ident != _thread.get_ident():
            stacks += [f"Thread {names.get(ident, ident)}:", *lines]
    return tuple(stacks)


class HangTimer:
    """Measures how long no comm operation has progressed, without time in which none could be observed."""

    def __init__(self, timeout_s: float, last_event: Callable[[], float]) -> None:
        self._timeout_s, self._last_event = timeout_s, last_event
        self._seen = self._unused = last_event()
        self._quiet = 0.0
        self._ticked = CLOCK.perf_counter()

    def is_over(self, excused: bool) -> bool:
        """Called at every tick; `excused` while some rank takes a heap snapshot, which makes the others wait."""
        now = CLOCK.perf_counter()
        passed, self._ticked = min(now - self._ticked, _MAX_TICK_S), now
        event = self._last_event()
        if event != self._seen or event == self._unused or excused:  # imports and initialisation are not a hang
            self._seen, self._quiet = event, 0.0
            return False
        self._quiet += passed
        return self._quiet > self._timeout_s


class TerminationTimer:
    """Detects a rank that was told to end but waits in native code for a peer.

    Python handlers run when the native call returns, which never happens if the peer does not send; the launcher would
    kill the rank after half a minute. A rank that has returned from its call, for example to save its model, is left
    alone.
    """

    def __init__(self, stacks: Path, ident: int, called: Callable[[], float]) -> None:
        self._stacks, self._ident, self._called = stacks, ident, called
        """`called` returns the clock at the last start of a comm operation."""

    def is_over(self) -> bool:
        """Called at every tick."""
        requested, now = _last_written(self._stacks), CLOCK.perf_counter()
        if requested is None or now - requested <= _TERMINATION_TIMEOUT_S:
            return False
        return self._called() < requested + _FILE_TIME_ERROR_S and self._is_in_a_call()

    def _is_in_a_call(self) -> bool:
        frame = sys._current_frames().get(self._ident)
        return frame is not None and "/leakscope/comm/" in frame.f_code.co_filename


class CommActivity(Protocol):
    """The activity of comm, as readings of the clock."""

    def last_call(self) -> float:
        """Time of the last start of an operation."""

    def last_event(self) -> float:
        """Time of the last event."""


class HangDetector:
    """Detects a rank that is stuck in a comm operation, and makes signals write stacks."""

    def __init__(self, stacks: Path, patches: Patches, timeout_s: float | None, comm: CommActivity) -> None:
        """`timeout_s` is that of `--hang-timeout`."""
        self._stacks = StacksOnSignals(stacks, patches)
        self._termination = TerminationTimer(stacks, _thread.get_ident(), comm.last_call)
        self._hang = None if timeout_s is None else HangTimer(timeout_s, comm.last_event)

    def is_hung(self, excused: bool) -> bool:
        """Called at every tick, as `HangTimer.is_over`; a rank that got a signal to end but cannot exits at once."""
        self._stacks.keep()
        if self._termination.is_over():
            leave_now(128 + signal.SIGINT)
        return self._hang is not None and self._hang.is_over(excused)


def _last_written(path: Path) -> float | None:
    """Time of the last write to a file, as a reading of the clock; None without one."""
    try:
        written = path.stat()
    except OSError:
        return None
    return CLOCK.perf_counter() - (CLOCK.wall_time() - written.st_mtime) if written.st_size else None
