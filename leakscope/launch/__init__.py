"""Starts the ranks of a run and collects how each ended."""

from __future__ import annotations

from leakscope.launch.outcome import Outcome
from leakscope.launch.start import Outside, launch, launch_inside, outside_launcher

__all__ = ["Outcome", "Outside", "launch", "launch_inside", "outside_launcher"]
