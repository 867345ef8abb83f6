"""How much growth makes a leak: by kind first, then by size."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.findings.facts import Origin
from leakscope.run.model import Rank, Run

SHARE_OF_MEMORY = 0.01
"""Share of all memory that growth of plain data reaches over the horizon to be a leak. At ten times as much a job of
the horizon's length still runs, at a tenth a history of scalars is a leak: 24 bytes a step on 24 GiB are 0.0001.
"""
USUAL_MEMORY = 16 << 30
"""Bytes of memory assumed for a run that did not record it."""
MIN_COUNTER_GROWTH = 64 * 1024
"""Bytes per step below which growth that only counters show, of no object that a snapshot names, is not a leak.
Heuristic: a rank of the clusters page that keeps nothing rises by 6 KiB a step over six steps.
"""


@dataclass(frozen=True)
class Thresholds:
    """The minimum growth, in bytes per step of one rank, to be a leak.

    Args:
        min_bytes: The user's own threshold, which replaces all others; None if none was given.
        horizon: Steps over which growth is projected.
        host_bytes: Memory of the host, or of the cgroup if that is less; None if unknown.
        device_bytes: Memory of the rank's accelerator; None if unknown.
        noise: Bytes per step by which measurements vary without growth; no plain data leaks by less.

    """

    min_bytes: int | None = None
    horizon: int = 100_000
    host_bytes: int | None = None
    device_bytes: int | None = None
    noise: int = 0

    @classmethod
    def of(cls, run: Run, rank: Rank) -> Thresholds:
        """The thresholds for one rank of a run."""
        return cls(run.min_bytes, run.horizon, memory_there(rank, on_device=False), memory_there(rank, on_device=True))

    @property
    def for_counters(self) -> int:
        """Bytes per step for growth that only counters show, and for avoidable memory."""
        return MIN_COUNTER_GROWTH if self.min_bytes is None else self.min_bytes

    def for_data(self, on_device: bool = False) -> int:
        """Bytes per step for plain data: tensors without a graph, arrays, Python objects."""
        if self.min_bytes is not None:
            return max(self.min_bytes, self.noise)
        there = (self.device_bytes if on_device else self.host_bytes) or USUAL_MEMORY
        return max(round(SHARE_OF_MEMORY * there / self.horizon), self.noise, 1)

    def for_finding(self, unintended: bool, on_device: bool = False) -> int:
        """Bytes per step for a finding; any growth is enough if retention is certainly unintended."""
        return 1 if unintended and self.min_bytes is None else self.for_data(on_device)


def is_unintended(of_rule: bool, origin: Origin, holds: str) -> bool:
    """Whether the kind of a finding alone makes it a leak; a library may keep such things on purpose, and bounded.

    `of_rule`: the rule reports only unintended retention. `holds` is what a growing container holds: `graphs`,
    `modules`, `parameters`, `hooks`, or "" for plain data.
    """
    return origin == Origin.APPLICATION and (of_rule or bool(holds))


def memory_there(rank: Rank, on_device: bool) -> int | None:
    """Total bytes of the host, or of the rank's device; None if not recorded."""
    if on_device:
        drivers = (layout.driver for row in rank.device_blocks for layout in row.layout)
        return next((driver[1] for driver in drivers if driver is not None), None)
    return rank.host_memory[0].limit_bytes if rank.host_memory else None
