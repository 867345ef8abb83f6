"""Replacements for torch's `check_leaked_tensors` and for counting tensors with gc."""

from __future__ import annotations

from leakscope.testing.leaked import LeakedTensors, check_leaked_tensors
from leakscope.testing.live import AddedTensors, LiveTensors, live_tensors

__all__ = ["AddedTensors", "LeakedTensors", "LiveTensors", "check_leaked_tensors", "live_tensors"]
