"""Starts the ranks of a run and collects how each ended."""

from __future__ import annotations

from leakscope.launch.outcome import Outcome
from leakscope.launch.start import ExternalLauncher, launch, launch_inside, outside_launcher

__all__ = ["ExternalLauncher", "Outcome", "launch", "launch_inside", "outside_launcher"]
