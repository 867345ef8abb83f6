"""Does a test leave tensors behind, and how many are there? For tests that already ask this in ways of their own."""

from __future__ import annotations

from leakscope.testing.leaked import LeakedTensors, check_leaked_tensors
from leakscope.testing.live import AddedTensors, LiveTensors, live_tensors

__all__ = ["AddedTensors", "LeakedTensors", "LiveTensors", "check_leaked_tensors", "live_tensors"]
