"""Did memory run short or out, and what would gc.freeze() save?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.record.kinds import RowTag
from leakscope.record.rows.row import Row, Signed


@dataclass(frozen=True, kw_only=True)
class AllocationFailure(Row):
    """An allocation failed, on the host or a device, and that ended the script."""

    FILE = "out_of_memory"

    step: int
    """The last step that had ended."""
    time: float = 0.0
    """Seconds since the epoch; the first versions did not say it."""
    error: str
    """First line of its text."""
    wanted_bytes: Signed | None = None
    """None where the error does not say."""
    at: str = ""
    """The innermost line of the user's, "" where there is none."""


@dataclass(frozen=True)
class MemoryThere(Row):
    """How much memory the host lets the process have."""

    FILE = "host_memory"

    limit: str
    """`its control group's memory limit`: what stands in the way first."""
    limit_bytes: int
    used_bytes: int | None = None
    """What counted against it before the first heap snapshot, by whatever process; None where that was not recorded."""


class MemoryShortage(Row):
    """Memory was short here or on a peer, and the heap was looked at."""

    FILE = "short_of_memory"


@dataclass(frozen=True)
class LimitNear(MemoryShortage):
    """A limit of the host's memory came near."""

    TAG = RowTag.NEAR

    step: int
    """The last step that had ended."""
    inside: bool
    """In the middle of the step after that one."""
    limit: str
    """`the control group's limit`."""
    limit_bytes: int
    used_bytes: int
    """What counted against the limit then."""


@dataclass(frozen=True)
class PeerOutOfMemory(MemoryShortage):
    """Another rank's allocation failed, and this one was looked at."""

    TAG = RowTag.PEER

    step: int
    of: int
    """That rank."""


SHORTAGE_ROWS = (LimitNear, PeerOutOfMemory)
"""Both kinds of rows of `short_of_memory.jsonl`."""


@dataclass(frozen=True)
class GcFreeze(Row):
    """What gc.freeze() would save: two full collections, measured after the gc diff."""

    FILE = "gc_freeze"

    full_seconds: float
    """With every object in it."""
    frozen_seconds: float
    """With every object left out."""
