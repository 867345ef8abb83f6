"""What time is it really? The script may replace `time.sleep` or stop the clock, as tests do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """The functions of `time` as they were when this was imported, ahead of the script."""

    wall_time: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    perf_counter: Callable[[], float] = time.perf_counter
    thread_time: Callable[[], float] = time.thread_time


# not one by one in the module: freezegun replaces them wherever a module has them (freezegun/api.py, freeze_time.start)
CLOCK = Clock()
