"""The Python API: `watch`, `Profiler`, `check`, `holders` and `draw`."""

from __future__ import annotations

from leakscope.profiler.block import watch
from leakscope.profiler.loop import Profiler
from leakscope.profiler.repeats import check
from leakscope.profiler.result import LeaksFound, Result, judge

__all__ = ["LeaksFound", "Profiler", "Result", "check", "judge", "watch"]
