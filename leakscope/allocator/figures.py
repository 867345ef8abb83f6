"""Which figures does the report on a snapshot consist of?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from leakscope.allocator.growth.steps import StepGrowth
from leakscope.allocator.layout import Fragmentation, Pool
from leakscope.allocator.moment.over_time import Labelled, Region, StreamPeak
from leakscope.allocator.moment.room import Room
from leakscope.allocator.sites import Site, SiteBytes


class History(StrEnum):
    """How much of what happened a file tells."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    """Recording began late, or its ring dropped the oldest events."""
    NONE = "none"


@dataclass(frozen=True)
class Timeline:
    """Bytes alive and reserved over the trace."""

    clock: bool
    """True when `at` is in seconds since the first event, False when it counts events (before torch 2.2)."""
    at: tuple[float, ...]
    event: tuple[int, ...]
    """The event after which most was alive in each stretch that a point stands for."""
    alive: tuple[int, ...]
    reserved: tuple[int, ...]
    categories: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What `alive` consists of, by category: judged from stacks and life spans."""


@dataclass(frozen=True)
class Moment:
    """What was alive right after one event."""

    event: int
    alive_bytes: int
    reserved_bytes: int
    categories: Mapping[str, int]
    """Bytes by category, the largest first: judged from stacks and life spans."""
    sites: tuple[SiteBytes, ...]


@dataclass(frozen=True)
class OutOfMemory:
    """The state at the moment an allocation failed, before anything was unwound."""

    event: int
    at: float | None
    """Seconds since the first event."""
    requested_bytes: int
    """The request after rounding."""
    device_free_bytes: int | None
    alive_bytes: int
    reserved_bytes: int
    site: Site
    """Where the failing request came from."""
    alive_sites: tuple[SiteBytes, ...]
    room: Room | None
    """What of the reserved memory was idle then, and what would have helped; None where no release was recorded."""


@dataclass(frozen=True)
class PendingFrees:
    """Memory whose tensors are dead but which work on another stream still holds (`record_stream`)."""

    blocks: int
    bytes: int
    requests: int
    """Releases asked for in the trace and not completed by its end."""
    highest_bytes: int
    """Most bytes in this state at any event of the trace."""
    sites: tuple[SiteBytes, ...]


@dataclass(frozen=True)
class DeviceReport:
    """One device of one snapshot; byte counts are after rounding for blocks, as requested for allocations."""

    device: int
    events: int
    actions: Mapping[str, int]
    history: History
    segments: int
    reserved_bytes: int
    active_bytes: int
    allocated_bytes: int
    requested_bytes: int
    """What the callers of the active blocks asked for."""
    blocks: Mapping[str, int]
    """Number of blocks by state."""
    live_events: int
    """Allocations of the trace alive at its end."""
    live_bytes: int
    ghost_blocks: int
    ghost_bytes: int
    unknown_frees: int
    traced_peak_bytes: int
    traced_peak_event: int
    peak_bytes: int
    peak_event: int
    """-1 without a history; the peak is then what is alive at the end."""
    end_sites: tuple[SiteBytes, ...]
    peak_sites: tuple[SiteBytes, ...]
    peak_categories: Mapping[str, int]
    """Bytes by category at the peak (without a history, at the end), the largest first: judged from stacks and life
    spans."""
    moment: Moment | None
    """What was asked for by `--at`."""
    streams: tuple[StreamPeak, ...]
    regions: tuple[Region, ...]
    region_categories: tuple[Mapping[str, int], ...]
    """Bytes by category when most was alive within each region, the largest first; in the order of `regions`."""
    labels: tuple[Labelled, ...]
    growth: StepGrowth
    pending: PendingFrees
    fragmentation: Fragmentation
    pools: tuple[Pool, ...]
    out_of_memory: tuple[OutOfMemory, ...]
    timeline: Timeline
    notes: tuple[str, ...]


@dataclass(frozen=True)
class HostReport:
    """Pinned host memory (torch 2.14 and later, when it was recorded)."""

    segments: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    events: int
    unknown: int
    """Further segments whose size the file gives under no name that is known."""


@dataclass(frozen=True)
class SnapshotReport:
    """What one file says."""

    name: str
    rank: int | None
    devices: tuple[DeviceReport, ...]
    """Devices with memory or events; at least one."""
    host: HostReport | None
    settings: Mapping[str, str]
