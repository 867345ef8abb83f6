"""One torch memory snapshot as plain data: segments, blocks, events, stacks and annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Indexes = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint8]


class Action(StrEnum):
    """The events of a trace, as torch writes them (TraceEntry::Action in c10/cuda/CUDACachingAllocator.h)."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"
    SNAPSHOT = "snapshot"
    OOM = "oom"
    ANNOTATE = "annotate"


class BlockState(StrEnum):
    """The states of a block, as torch writes them."""

    INACTIVE = "inactive"
    ALLOCATED = "active_allocated"
    PENDING_FREE = "active_pending_free"
    """Its tensor is dead, and work on another stream still uses it."""


ACTIONS = tuple(Action)
"""The events indexed by `Trace.action`; further codes are names from the file, in `Trace.action_names`."""
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = range(7)
OOM = ACTIONS.index(Action.OOM)

STATES = tuple(BlockState)
"""The states indexed by `Blocks.state`."""

INACTIVE, ALLOCATED, PENDING_FREE = range(3)

NOT_RECORDED, NO_FRAMES = 0, 1
"""Stack numbers of 'no stack was recorded' and 'a stack without any frame'."""

UNKNOWN = -1
"""A number missing from the file."""


class Frame(NamedTuple):
    """One line of a stack."""

    name: str
    filename: str
    line: int


Stack = tuple[Frame, ...]
"""Innermost frame first."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The allocator's events on one device, oldest first, one array per field."""

    device: int
    action: Codes
    action_names: tuple[str, ...]
    address: Ints
    """64 bits, stored signed: compare for equality only."""
    size: Ints
    """Requested bytes; for `oom` after rounding."""
    device_free: Ints
    """Free bytes of the device, for `oom` only."""
    time_us: Ints
    """Microseconds since the epoch, or `UNKNOWN` before torch 2.2."""
    stream: Ints
    """The stream's number or pointer, or `UNKNOWN`."""
    stack: Indexes
    """Index into `Snapshot.stacks`."""
    compiled: Indexes
    """Index into `texts`: the compiled region (torch 2.8); 0 outside of any."""
    metadata: Indexes
    """Index into `texts`: what the user set for allocations (`_set_memory_metadata`, torch 2.10); 0 for nothing."""
    pool: Indexes
    """Index into `pools` (torch 2.12), or `UNKNOWN`."""
    texts: tuple[str, ...]
    pools: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Every block of every segment, one array per field."""

    address: Ints
    size: Ints
    """Bytes after rounding."""
    requested: Ints
    """Bytes the caller asked for; stale (of the last use) on inactive blocks."""
    state: Codes
    segment: Indexes
    stack: Indexes

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class Segment:
    """One range of device memory reserved from the driver."""

    device: int
    address: int
    """As a signed 64-bit integer of numpy."""
    total_size: int
    kind: str
    """`small`, `large` or empty."""
    stream: int
    pool: tuple[int, int]
    """(0, 0) is the default pool."""
    expandable: bool


@dataclass(frozen=True)
class Annotation:
    """The start or end of a `record_function` region."""

    name: str
    starts: bool
    device: int
    time_us: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The content of one file."""

    name: str
    segments: tuple[Segment, ...]
    blocks: Blocks
    traces: tuple[Trace, ...]
    """One per device."""
    stacks: tuple[Stack, ...]
    annotations: tuple[Annotation, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    divisions: tuple[int, ...] = ()
    """The setting `roundup_power2_divisions`: the parts of a power of two to which requests of 1, 2, 4, ... MiB are
    rounded; empty if it is not set.
    """
    overflowed: bool = False
    """Whether the ring of events dropped the oldest, according to the file."""
