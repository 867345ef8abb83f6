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


def room_at(snapshot: Snapshot, played: Replay, trace: Trace, event: int) -> Room | None:
    """The memory at `event`, the failure of an allocation; None where no release was recorded, so that nothing tells
    what was idle.
    """
    if played.freed_by is None and (played.died < played.events).any():
        return None
    layout = layout_at(snapshot, trace, event)
    idle, largest, tail = gaps(layout, alive_in(layout, snapshot, played, trace, event))
    empty = idle == layout.high - layout.low
    request = _request(snapshot, layout, trace, event, tail)
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
        expandable=uses_expandable(snapshot, layout),
        pools=tuple(sorted(rows, key=lambda row: (-row.reserved_bytes, row.pool, row.stream))),
        helps=_helps(layout, request, idle, empty, uses_expandable(snapshot, layout))
        + _smaller_batch(request, _forward_bytes(snapshot, played, event)),
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


def _request(snapshot: Snapshot, layout: Layout, trace: Trace, event: int, tail: Ints) -> _Request:
    size, stream = max(int(trace.size[event]), 0), int(trace.stream[event])
    named, found = int(trace.pool[event]), int(trace.device_free[event])
    own_pool = layout.pool == layout.pools.index(DEFAULT_POOL if named < 0 else trace.pools[named])
    small = size <= SMALL_REQUEST
    fits = own_pool & ((layout.stream == stream) | (stream == UNKNOWN)) & (layout.small == small)
    free = None if found == UNKNOWN else found
    needed = segment_size(size)
    if uses_expandable(snapshot, layout):
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        needed = _rounded(max(size - _first_tail(layout, tail, layout.expandable & fits, size), 1), page)
        if free is not None and free >= needed:  # what is idle at the end may not have counted
            needed = _rounded(max(size, 1), page)
    return _Request(size, needed, free, own_pool, fits)


def uses_expandable(snapshot: Snapshot, layout: Layout) -> bool:
    """Whether segments could be expanded."""
    return bool(layout.expandable.any()) or snapshot.settings.get("expandable_segments") == "True"


def _first_tail(layout: Layout, tail: Ints, chosen: npt.NDArray[np.bool_], size: int) -> int:
    """Idle bytes before the lowest unmapped range with room for a request (find_expandable_block); 0 where none is."""
    places = np.flatnonzero(chosen)
    holes = np.append(layout.low[places[1:]] - layout.high[places[:-1]], np.iinfo(np.int64).max >> 1)
    enough = np.flatnonzero(tail[places] + holes[: len(places)] >= size)
    return int(tail[places[enough[0]]]) if len(enough) else 0


def _helps(
    layout: Layout, request: _Request, idle: Ints, empty: npt.NDArray[np.bool_], expandable: bool
) -> tuple[Help, ...]:
    """What each setting brings at the most; whether that is enough."""
    default = layout.pool == layout.pools.index(DEFAULT_POOL)
    emptied = int(idle[empty & default].sum())
    own_idle = int(idle[request.own_pool].sum())
    joined = 0 if expandable else own_idle
    width = layout.high - layout.low
    # held by pieces alone that are smaller than what was asked for: it would not have been split for them. The setting
    # is for sizes above 20 MiB (CUDAAllocatorConfig.cpp)
    may_split = request.own_pool & ~empty & ~layout.expandable & ~layout.small & (width > LARGE_SEGMENT)
    unsplit = int(width[may_split & (width >= request.bytes) & (width - idle < request.bytes)].max(initial=0))
    # what kept it needs room elsewhere, so all that was idle must make up for it
    instead = request.fits_with(own_idle, request.bytes) if unsplit else False
    return (
        Help(Remedy.EMPTY_CACHE, emptied, request.fits_with(emptied, request.needed)),
        Help(Remedy.EXPANDABLE_SEGMENTS, joined, request.fits_with(joined, request.bytes)),
        Help(Remedy.MAX_SPLIT_SIZE, unsplit, instead),
    )


def _smaller_batch(request: _Request, forward_bytes: int) -> tuple[Help, ...]:
    if request.free is None or not forward_bytes:
        return ()
    short = request.needed - (0 if request.limited else request.free)
    return (Help(Remedy.SMALLER_BATCH, short, short <= forward_bytes, forward_bytes),)


def _forward_bytes(snapshot: Snapshot, played: Replay, event: int) -> int:
    """Bytes alive at `event` that the forward had made since the trace began."""
    alive = played.live_at(event)
    forward = [
        number
        for number in np.unique(played.stacks[alive]).tolist()
        if part_of(snapshot.stacks[number], number) in (StackPart.FORWARD, StackPart.RECOMPUTED)
    ]
    return int(played.sizes[alive[np.isin(played.stacks[alive], forward)]].sum())
