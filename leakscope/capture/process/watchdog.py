"""How does a run end after N steps on every rank, where only some own an optimizer and some swallow the stop?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.guard import Guard

_TICK_INTERVAL_S = 0.1
"""Seconds between two ticks."""


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

    def start(self, guard: Guard) -> None:
        """Start the thread; an error of ours ends it."""
        self._tick = guard.guarded("tick of the watchdog", self._tick)
        guard.thread("watchdog thread", self._run)

    def end(self) -> None:
        """Let the thread end at its next tick."""
        self._ended = True

    def extend(self, seconds: float) -> None:
        """Give the rank more time: leakscope itself was at work that long."""
        self._grace_s += seconds

    def _run(self) -> None:
        since: float | None = None
        while not self._ended:
            CLOCK.sleep(_TICK_INTERVAL_S)
            self._tick()
            if since is None and self._over():
                since = CLOCK.monotonic()
            if since is not None and CLOCK.monotonic() - since > self._grace_s and not self._ended:
                self._leave()


def leave_now(status: int) -> None:
    """End the process at once, without waiting for anybody; what the script has printed is not lost."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(status)
