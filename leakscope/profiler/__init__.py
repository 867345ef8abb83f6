"""leakscope from Python code: `watch` a block, `Profiler` around a training loop, `check` a training step."""

from __future__ import annotations

from leakscope.profiler.block import watch
from leakscope.profiler.leaks import LeaksFound
from leakscope.profiler.loop import Profiler
from leakscope.profiler.repeats import check
from leakscope.profiler.result import Result, judge

__all__ = ["LeaksFound", "Profiler", "Result", "check", "judge", "watch"]
