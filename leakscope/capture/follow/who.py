"""What is known of a process before it joins others?"""

from __future__ import annotations

import sys

from leakscope.capture.process.clock import CLOCK
from leakscope.options import launchers_number
from leakscope.originals import os
from leakscope.record.processes.process import Who


def who_am_i() -> Who:
    """What is known of this process before it joins a group."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    place = () if multiprocessing is None else tuple(multiprocessing.current_process()._identity)
    rank, world = (launchers_number(os.environ, *said) for said in (("RANK", -1), ("WORLD_SIZE", 1)))
    return Who(os.getpid(), os.getppid(), CLOCK.wall_time(), place, rank if 0 <= rank < world else None, max(world, 1))
