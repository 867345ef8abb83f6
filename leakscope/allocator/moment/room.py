"""Why was there no room? What of the reserved memory was idle when an allocation failed, and what would have helped.

The layout at the failure is put together from the end's segments and the events between: nothing here is what is left
after the script has unwound.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from leakscope.allocator.replaying import Chosen, Replay
from leakscope.allocator.sites import StackPart, part_of
from leakscope.allocator.snapshot import (
    INACTIVE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    UNKNOWN,
    Ints,
    Segment,
    Snapshot,
    Trace,
)

_ROUNDING = 512
"""Bytes that sizes are rounded up to (kMinBlockSize of torch's c10/cuda/CUDACachingAllocator.cpp)."""
_SMALL_REQUEST = 1 << 20
"""Bytes up to which a request is served from small segments (kSmallSize)."""
_SMALL_SEGMENT = 2 << 20
"""Bytes reserved for small requests (kSmallBuffer), and what larger segments are rounded up to (kRoundLarge)."""
_LARGE_SEGMENT = 20 << 20
"""Bytes reserved for requests of less than half as much (kLargeBuffer, kMinLargeAlloc)."""
_DEFAULT_POOL = (0, 0)


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
    """Whether the request would have fitted then, at best; None where the device's free memory is not told."""
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
    """What the allocator had to ask the device for: the request rounded up to a segment."""
    idle_bytes: int
    largest_idle_bytes: int
    """The largest idle piece that the request could have been put into: of its stream, in the default pool."""
    empty_bytes: int
    """In segments that held nothing."""
    expandable: bool
    """Whether segments could already be expanded."""
    pools: tuple[PoolRoom, ...]
    """Largest first."""
    helps: tuple[Help, ...]


@dataclass(frozen=True, eq=False)
class _Layout:
    """Stretches of reserved memory, in the order of their addresses, one array per field."""

    low: Ints
    high: Ints
    stream: Ints
    pool: Ints
    """Index into `pools`."""
    expandable: npt.NDArray[np.bool_]
    pools: tuple[tuple[int, int], ...]


def room_at(snapshot: Snapshot, played: Replay, trace: Trace, event: int) -> Room:
    """The memory at `event`, the failure of an allocation; linear in events and blocks, but for sorting."""
    layout = _layout(snapshot, trace, event)
    address, size = _alive(snapshot, played, trace, event)
    idle, largest, empty = _gaps(layout, address, size)
    request, stream = max(int(trace.size[event]), 0), int(trace.stream[event])
    in_default = np.array([pool == _DEFAULT_POOL for pool in layout.pools], np.bool_)[layout.pool]
    fits = in_default & ((layout.stream == stream) | (stream == UNKNOWN))
    free = int(trace.device_free[event])
    rows = []
    for number, pool in enumerate(layout.pools):
        for its in np.unique(layout.stream[layout.pool == number]).tolist():
            here = (layout.pool == number) & (layout.stream == its)
            reserved = int((layout.high - layout.low)[here].sum())
            rows.append(PoolRoom(pool, its, reserved, int(idle[here].sum()), int(largest[here].max(initial=0))))
    return Room(
        needed_bytes=segment_size(request),
        idle_bytes=int(idle.sum()),
        largest_idle_bytes=int(largest[fits].max(initial=0)),
        empty_bytes=int(idle[empty].sum()),
        expandable=bool(layout.expandable.any()),
        pools=tuple(sorted(rows, key=lambda row: (-row.reserved_bytes, row.pool, row.stream))),
        helps=_helps(layout, request, free, idle, empty, in_default, _forward_bytes(snapshot, played, event)),
    )


def segment_size(request: int) -> int:
    """Bytes that the allocator asks the device for where a request of so many fits nowhere (get_allocation_size)."""
    if request <= _SMALL_REQUEST:
        return _SMALL_SEGMENT
    if request < _LARGE_SEGMENT // 2:
        return _LARGE_SEGMENT
    return -(-request // _SMALL_SEGMENT) * _SMALL_SEGMENT


def _helps(
    layout: _Layout,
    request: int,
    free: int,
    idle: Ints,
    empty: npt.NDArray[np.bool_],
    in_default: npt.NDArray[np.bool_],
    forward_bytes: int,
) -> tuple[Help, ...]:
    """What each remedy brings at the most; whether that is enough."""

    def enough(brought: int, needed: int) -> bool | None:
        return None if free == UNKNOWN else brought + free >= needed

    needed = segment_size(request)
    emptied = int(idle[empty & in_default].sum())
    joined = 0 if layout.expandable.any() else int(idle[in_default].sum())
    width = layout.high - layout.low
    # held by pieces alone that are smaller than what was asked for: it would not have been split for them
    split = in_default & ~empty & ~layout.expandable & (width >= request) & (width - idle < request)
    unsplit = int(width[split].max(initial=0))
    # what kept it needs room elsewhere, so all that was idle must make up for it
    instead = enough(int(idle[in_default].sum()), request) if unsplit else False
    helps = [
        Help(Remedy.EMPTY_CACHE, emptied, enough(emptied, needed)),
        Help(Remedy.EXPANDABLE_SEGMENTS, joined, enough(joined, request)),
        Help(Remedy.MAX_SPLIT_SIZE, unsplit, instead),
    ]
    if free != UNKNOWN and forward_bytes:
        short = max(needed - free, 0)
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


def _alive(snapshot: Snapshot, played: Replay, trace: Trace, event: int) -> tuple[Ints, Ints]:
    """Addresses and rounded sizes of all that was alive at `event`, in order."""
    blocks = snapshot.blocks
    used = np.flatnonzero(blocks.state != INACTIVE)
    exact = dict(zip(blocks.address[used].tolist(), blocks.size[used].tolist(), strict=True))
    traced = played.live_at(event)
    sizes = -(-np.maximum(played.sizes[traced], 1) // _ROUNDING) * _ROUNDING
    addresses = trace.address[played.born[traced]]
    kept = np.flatnonzero(played.died[traced] >= played.events)
    sizes[kept] = [
        exact.get(address, size) for address, size in zip(addresses[kept].tolist(), sizes[kept].tolist(), strict=True)
    ]
    lost = played.unknown_frees[played.unknown_frees > event]
    rounded = -(-np.maximum(trace.size[lost], 1) // _ROUNDING) * _ROUNDING
    address = np.concatenate([addresses, blocks.address[played.ghosts], trace.address[lost]])
    size = np.concatenate([sizes, blocks.size[played.ghosts], rounded])
    order = np.argsort(address, kind="stable")
    return address[order], size[order]


def _layout(snapshot: Snapshot, trace: Trace, event: int) -> _Layout:
    """The end's segments, less what was reserved after `event`, and with what was given back after it."""
    segments = sorted(
        (segment for segment in snapshot.segments if segment.device == trace.device),
        key=lambda segment: segment.address,
    )
    later = np.arange(len(trace)) > event
    taken = np.flatnonzero(later & np.isin(trace.action, (SEGMENT_ALLOC, SEGMENT_MAP)))
    given = np.flatnonzero(later & np.isin(trace.action, (SEGMENT_FREE, SEGMENT_UNMAP)))
    low = np.array([segment.address for segment in segments], np.int64)
    high = low + np.array([segment.total_size for segment in segments], np.int64)
    lows = np.concatenate([low, trace.address[given], trace.address[taken]])
    highs = np.concatenate([high, (trace.address + trace.size)[given], (trace.address + trace.size)[taken]])
    sign = np.ones(len(lows), np.int64)
    sign[len(low) + len(given) :] = -1
    edges = np.unique(np.concatenate([lows, highs]))
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, np.searchsorted(edges, lows), sign)
    np.subtract.at(change, np.searchsorted(edges, highs), sign)
    covered = np.cumsum(change)[:-1] > 0 if len(edges) else np.zeros(0, np.bool_)
    owner = np.full(len(covered), -1, np.int64)
    for at, (begin, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        owner[np.searchsorted(edges, begin) : np.searchsorted(edges, end)] = at
    for at in given[::-1].tolist():  # what was given back first was there
        begin = int(trace.address[at])
        span = slice(*np.searchsorted(edges, [begin, begin + int(trace.size[at])]).tolist())
        owner[span] = len(segments) + at
    return _stretches(edges, covered, owner, segments, trace)


def _stretches(
    edges: Ints, covered: npt.NDArray[np.bool_], owner: Ints, segments: list[Segment], trace: Trace
) -> _Layout:
    """Pieces side by side that belong to one segment, or that can be expanded into each other, as one."""
    pools = tuple(sorted({segment.pool for segment in segments} | {_DEFAULT_POOL}))
    count = len(segments)
    expandable = np.concatenate(
        [np.array([segment.expandable for segment in segments], np.bool_), trace.action == SEGMENT_UNMAP]
    )
    stream = np.concatenate([np.array([segment.stream for segment in segments], np.int64), trace.stream])
    pool = np.full(count + len(trace), pools.index(_DEFAULT_POOL), np.int64)
    pool[:count] = [pools.index(segment.pool) for segment in segments]
    at = np.flatnonzero(covered & (owner >= 0))
    own = owner[at]
    begins = np.ones(len(at), np.bool_)
    beside = at[1:] == at[:-1] + 1
    same = (own[1:] == own[:-1]) | (
        expandable[own[1:]]
        & expandable[own[:-1]]
        & (stream[own[1:]] == stream[own[:-1]])
        & (pool[own[1:]] == pool[own[:-1]])
    )
    begins[1:] = ~(beside & same)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(at)) - 1 if len(at) else first
    mine = own[first]
    return _Layout(edges[at[first]], edges[at[last] + 1], stream[mine], pool[mine], expandable[mine], pools)


def _gaps(layout: _Layout, address: Ints, size: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Of each stretch: its idle bytes, its largest idle piece, and whether it holds nothing."""
    count = len(layout.low)
    place = np.searchsorted(layout.low, address, "right") - 1
    inside: Chosen = np.flatnonzero(place >= 0)
    inside = inside[address[inside] < layout.high[place[inside]]]
    place, begin = place[inside], address[inside]
    end = np.minimum(begin + size[inside], layout.high[place])
    held = np.zeros(count, np.int64)
    np.add.at(held, place, end - begin)
    largest = np.zeros(count, np.int64)
    opens = np.diff(place, prepend=-1) != 0
    before = np.where(opens, layout.low[place], np.append(0, end[:-1]) if len(end) else end)
    np.maximum.at(largest, place, begin - before)
    closes = np.flatnonzero(np.append(opens[1:], True)) if len(place) else np.zeros(0, np.intp)
    np.maximum.at(largest, place[closes], (layout.high[place] - end)[closes])
    empty = held == 0
    width = layout.high - layout.low
    largest[empty] = width[empty]
    return width - held, largest, empty
