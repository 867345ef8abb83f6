"""Why was there no room? What of the reserved memory was idle when an allocation failed, and what would have helped.

The layout at the failure is put together from the end's segments and the events between: nothing here is what is left
after the script has unwound.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from leakscope.allocator.moment.reserved import (
    DEFAULT_POOL,
    LARGE_SEGMENT,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    Layout,
    alive_in,
    gaps,
    layout_at,
)
from leakscope.allocator.replaying import Replay
from leakscope.allocator.sites import StackPart, part_of
from leakscope.allocator.snapshot import UNKNOWN, Ints, Snapshot, Trace


class Remedy(StrEnum):
    """What a user can try."""

    EMPTY_CACHE = "empty_cache"
    EXPANDABLE_SEGMENTS = "expandable_segments"
    MAX_SPLIT_SIZE = "max_split_size_mb"
    SMALLER_BATCH = "smaller_batch"


@dataclass(frozen=True)
class Help:
    """What one remedy would have brought."""

    remedy: Remedy
    bytes: int
    """Made usable at the most; for a smaller batch, those that must go from what the forward had made."""
    enough: bool | None
    """Whether the request would have fitted then, at best; None where how much was missing is not told."""
    of_bytes: int = 0
    """What the forward had made and was alive, for a smaller batch."""


@dataclass(frozen=True)
class PoolRoom:
    """The memory reserved for one stream in one pool of the allocator, at the failure."""

    pool: tuple[int, int]
    stream: int
    reserved_bytes: int
    idle_bytes: int
    largest_idle_bytes: int


@dataclass(frozen=True)
class Room:
    """What was reserved and idle at the failure."""

    needed_bytes: int
    """What the allocator had to ask the device for: the request rounded up to a segment, or to what an expandable one
    grows by."""
    missing_bytes: int | None
    """What the device lacked of it; None where its free memory is not told, or was not what was lacking."""
    limited: bool
    """The device had enough: a limit of the process's own refused it (`set_per_process_memory_fraction`), or the
    driver."""
    idle_bytes: int
    largest_idle_bytes: int
    """The largest idle piece that the request could have been put into: of its stream, its pool and its size."""
    empty_bytes: int
    """In segments that held nothing."""
    expandable: bool
    """Whether segments could already be expanded."""
    pools: tuple[PoolRoom, ...]
    """Largest first."""
    helps: tuple[Help, ...]


@dataclass(frozen=True, eq=False)
class _Request:
    """What was asked for, and which of the reserved stretches could have served it."""

    bytes: int
    needed: int
    """To be asked of the device."""
    free: int | None
    """What the device had."""
    own_pool: npt.NDArray[np.bool_]
    """Of each stretch: whether it belongs to the request's pool."""
    fits: npt.NDArray[np.bool_]
    """Of each stretch: whether the request could have been put there."""

    @property
    def limited(self) -> bool:
        return self.free is not None and self.free >= self.needed

    def fits_with(self, brought: int, needed: int) -> bool | None:
        """Whether so many bytes more would have made up for what was missing of `needed`."""
        if self.free is None:
            return None
        if self.limited:  # between nothing and all of it was missing
            return True if brought >= needed else None if brought else False
        return brought + self.free >= needed


def room_at(snapshot: Snapshot, played: Replay, trace: Trace, event: int) -> Room:
    """The memory at `event`, the failure of an allocation; linear in events and blocks, but for sorting."""
    layout = layout_at(snapshot, trace, event)
    idle, largest, tail = gaps(layout, alive_in(layout, snapshot, played, trace, event))
    empty = idle == layout.high - layout.low
    request = _request(layout, trace, event, tail)
    rows = []
    for number, pool in enumerate(layout.pools):
        for its in np.unique(layout.stream[layout.pool == number]).tolist():
            here = (layout.pool == number) & (layout.stream == its)
            reserved = int((layout.high - layout.low)[here].sum())
            rows.append(PoolRoom(pool, its, reserved, int(idle[here].sum()), int(largest[here].max(initial=0))))
    knows = request.free is not None and not request.limited
    return Room(
        needed_bytes=request.needed,
        missing_bytes=request.needed - (request.free or 0) if knows else None,
        limited=request.limited,
        idle_bytes=int(idle.sum()),
        largest_idle_bytes=int(largest[request.fits].max(initial=0)),
        empty_bytes=int(idle[empty].sum()),
        expandable=bool(layout.expandable.any()),
        pools=tuple(sorted(rows, key=lambda row: (-row.reserved_bytes, row.pool, row.stream))),
        helps=_helps(layout, request, idle, empty, _forward_bytes(snapshot, played, event)),
    )


def segment_size(request: int) -> int:
    """Bytes that the allocator asks the device for where a request of so many fits nowhere (get_allocation_size)."""
    if request <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if request < LARGE_SEGMENT // 2:
        return LARGE_SEGMENT
    return _rounded(request, SMALL_SEGMENT)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _request(layout: Layout, trace: Trace, event: int, tail: Ints) -> _Request:
    size, stream = max(int(trace.size[event]), 0), int(trace.stream[event])
    named = int(trace.pool[event])
    own = np.array([pool == (DEFAULT_POOL if named < 0 else trace.pools[named]) for pool in layout.pools], np.bool_)
    own_pool = own[layout.pool]
    small = size <= SMALL_REQUEST
    fits = own_pool & ((layout.stream == stream) | (stream == UNKNOWN)) & (layout.small == small)
    needed, free = segment_size(size), int(trace.device_free[event])
    if (layout.expandable & fits).any():  # it grows by whole pages, and what is idle at its end counts
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        needed = _rounded(max(size - int(tail[layout.expandable & fits].max()), 1), page)
    return _Request(size, needed, None if free == UNKNOWN else free, own_pool, fits)


def _helps(
    layout: Layout, request: _Request, idle: Ints, empty: npt.NDArray[np.bool_], forward_bytes: int
) -> tuple[Help, ...]:
    """What each remedy brings at the most; whether that is enough."""
    default = np.array([pool == DEFAULT_POOL for pool in layout.pools], np.bool_)[layout.pool]
    emptied = int(idle[empty & default].sum())
    own_idle = int(idle[request.own_pool].sum())
    joined = 0 if layout.expandable.any() else own_idle
    width = layout.high - layout.low
    # held by pieces alone that are smaller than what was asked for: it would not have been split for them
    held = width - idle
    split = request.own_pool & ~empty & ~layout.expandable & (width >= request.bytes) & (held < request.bytes)
    unsplit = int(width[split].max(initial=0))
    # what kept it needs room elsewhere, so all that was idle must make up for it
    instead = request.fits_with(own_idle, request.bytes) if unsplit else False
    helps = [
        Help(Remedy.EMPTY_CACHE, emptied, request.fits_with(emptied, request.needed)),
        Help(Remedy.EXPANDABLE_SEGMENTS, joined, request.fits_with(joined, request.bytes)),
        Help(Remedy.MAX_SPLIT_SIZE, unsplit, instead),
    ]
    if request.free is not None and forward_bytes:
        short = request.needed - (0 if request.limited else request.free)
        helps.append(Help(Remedy.SMALLER_BATCH, short, short <= forward_bytes, forward_bytes))
    return tuple(helps)


def _forward_bytes(snapshot: Snapshot, played: Replay, event: int) -> int:
    """Bytes alive at `event` that the forward had made since the trace began."""
    alive = played.live_at(event)
    forward = [
        number
        for number in np.unique(played.stacks[alive]).tolist()
        if part_of(snapshot.stacks[number], number) in (StackPart.FORWARD, StackPart.RECOMPUTED)
    ]
    return int(played.sizes[alive[np.isin(played.stacks[alive], forward)]].sum())
