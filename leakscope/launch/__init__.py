"""How does a run start and end? The ranks are started under recorders, followed, and each one's end collected."""

from __future__ import annotations

from leakscope.launch.gathering import forget
from leakscope.launch.outcome import Outcome
from leakscope.launch.outside import Outside, outside_launcher
from leakscope.launch.start import launch, launch_inside

__all__ = ["Outcome", "Outside", "forget", "launch", "launch_inside", "outside_launcher"]
