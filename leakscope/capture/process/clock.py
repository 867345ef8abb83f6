"""The real clock. The script may replace `time.sleep` or stop the time, as tests do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leakscope.originals import time

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
