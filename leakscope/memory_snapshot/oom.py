"""Reserved memory when an allocation failed, and what would have made room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from leakscope.memory_snapshot.model import (
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
from leakscope.memory_snapshot.replay import Chosen, Replay
from leakscope.memory_snapshot.sites import StackPart, part_of

_ROUNDING = 512
"""Bytes that sizes are rounded up to (kMinBlockSize of torch's c10/cuda/CUDACachingAllocator.cpp)."""
SMALL_SEGMENT = 2 << 20
"""Bytes reserved for small requests (kSmallBuffer), and what larger segments are rounded up to (kRoundLarge)."""
SMALL_REQUEST = 1 << 20
"""Bytes up to which a request is served from small segments, and what is not split off a large one (kSmallSize)."""
LARGE_SEGMENT = 20 << 20
"""Bytes reserved for requests of less than half as much (kLargeBuffer, kMinLargeAlloc), and those mapped at once for
large ones (CUDAAllocatorConfig, large_segment_size)."""
DEFAULT_POOL = (0, 0)


@dataclass(frozen=True, eq=False)
class ReservedLayout:
    """Stretches of reserved memory, in the order of their addresses, one array per field."""

    low: Ints
    high: Ints
    stream: Ints
    pool: Ints
    """Index into `pools`."""
    expandable: npt.NDArray[np.bool_]
    small: npt.NDArray[np.bool_]
    """Whether it serves small requests only (`segment_type`)."""
    pools: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class LiveBlocks:
    """All blocks in use at that time, by address, one array per field."""

    address: Ints
    size: Ints
    """Bytes after rounding, including remainders too small to be split off."""


def alive_in(layout: ReservedLayout, snapshot: Snapshot, played: Replay, trace: Trace, event: int) -> LiveBlocks:
    """What was in use directly after `event`.

    Sizes of blocks that remain at the end are the file's own; the others are computed as the allocator rounds requests.
    """
    blocks, ghosts, lost = snapshot.blocks, played.ghosts, played.unknown_frees
    before = np.full(len(ghosts) + len(lost), -1)
    address = np.concatenate([trace.address[played.born], blocks.address[ghosts], trace.address[lost]])
    size = rounded(np.concatenate([played.sizes, blocks.size[ghosts], trace.size[lost]]), snapshot.divisions)
    born = np.concatenate([played.born, before])
    died = np.concatenate([played.died, np.full(len(ghosts), played.events), lost])
    order = np.argsort(address, kind="stable")
    address, size, born, died = address[order], size[order], born[order], died[order]
    there = np.flatnonzero((born <= event) & (died > event))
    own = np.array([segment.device == trace.device for segment in snapshot.segments], np.bool_)
    used = np.flatnonzero((blocks.state != INACTIVE) & own[blocks.segment])
    exact = dict(zip(blocks.address[used].tolist(), blocks.size[used].tolist(), strict=True))
    for at in there[died[there] >= played.events].tolist():
        size[at] = exact.get(int(address[at]), int(size[at]))
    unsplit = _setting(snapshot, "max_split_size")
    for at, high in _doubtful(layout, address, size, there[died[there] < played.events]):
        # free blocks are always joined, so the allocator had everything up to the next block
        low, upper = int(np.searchsorted(address, address[at], "right")), int(np.searchsorted(address, high))
        then = (born[low:upper] < max(born[at], 0)) & (died[low:upper] > born[at])
        most = int(address[low:upper][then].min(initial=high)) - int(address[at])
        if most - int(size[at]) <= SMALL_REQUEST or size[at] >= unsplit:
            size[at] = most
    return LiveBlocks(address[there], size[there])


def rounded(size: Ints, divisions: Sequence[int] = ()) -> Ints:
    """The sizes of the blocks for requests (round_size; with `divisions`, roundup_power2_next_division)."""
    requested = np.maximum(size, 1)
    plain: Ints = -(-requested // _ROUNDING) * _ROUNDING
    if not divisions:
        return plain
    floor = 1 << np.frexp(requested.astype(np.float64))[1].astype(np.int64) - 1
    number = np.clip(np.frexp(requested.astype(np.float64))[1] - 21, 0, len(divisions) - 1)
    parts = np.array(divisions, np.int64)[number]
    part = np.maximum(floor // np.maximum(parts, 1), 1)
    divided = -(-requested // part) * part
    return np.where((parts > 1) & (requested > _ROUNDING * parts), divided, plain)


def _doubtful(layout: ReservedLayout, address: Ints, size: Ints, chosen: Chosen) -> list[tuple[int, int]]:
    """Return (block, end of its stretch) for those of `chosen` that may be larger than requested: in segments for large
    requests. Small and expandable ones are split to the last 512 bytes (should_split).
    """
    if not len(layout.low):
        return []
    place = np.searchsorted(layout.low, address[chosen], "right") - 1
    inside = (place >= 0) & (address[chosen] + size[chosen] < layout.high[place])
    whole = inside & ~layout.small[place] & ~layout.expandable[place]
    return list(zip(chosen[whole].tolist(), layout.high[place[whole]].tolist(), strict=True))


def _setting(snapshot: Snapshot, name: str) -> int:
    """A size among the allocator's settings; infinite if missing."""
    text = snapshot.settings.get(name, "")
    return int(text) if text.isdecimal() and int(text) else 1 << 62


def layout_at(snapshot: Snapshot, trace: Trace, event: int) -> ReservedLayout:
    """The segments at the end, without those reserved after `event`, with those released after it."""
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
    for at in given[::-1].tolist():  # memory released first was there
        begin = int(trace.address[at])
        span = slice(*np.searchsorted(edges, [begin, begin + int(trace.size[at])]).tolist())
        owner[span] = len(segments) + at
    return _stretches(edges, covered, owner, segments, trace)


def _stretches(
    edges: Ints, covered: npt.NDArray[np.bool_], owner: Ints, segments: list[Segment], trace: Trace
) -> ReservedLayout:
    """Merge adjacent pieces that belong to one segment or can be expanded into each other."""
    pools = tuple(sorted({segment.pool for segment in segments} | {DEFAULT_POOL} | set(trace.pools)))
    index = {pool: at for at, pool in enumerate(pools)}
    expandable = np.concatenate(
        [np.array([segment.expandable for segment in segments], np.bool_), trace.action == SEGMENT_UNMAP]
    )
    stream = np.concatenate([np.array([segment.stream for segment in segments], np.int64), trace.stream])
    # before torch 2.12 an event did not name its pool: released memory then counts as the default pool's
    number = np.array([*(index[named] for named in trace.pools), index[DEFAULT_POOL]], np.int64)
    pool = np.concatenate([np.array([index[segment.pool] for segment in segments], np.int64), number[trace.pool]])
    small = np.concatenate([np.array([segment.kind == "small" for segment in segments], np.bool_), _was_small(trace)])
    at = np.flatnonzero(covered & (owner >= 0))
    own = owner[at]
    begins = np.ones(len(at), np.bool_)
    beside = at[1:] == at[:-1] + 1
    same = (own[1:] == own[:-1]) | (
        expandable[own[1:]]
        & expandable[own[:-1]]
        & (stream[own[1:]] == stream[own[:-1]])
        & (pool[own[1:]] == pool[own[:-1]])
        & (small[own[1:]] == small[own[:-1]])
    )
    begins[1:] = ~(beside & same)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(at)) - 1 if len(at) else first
    mine = own[first]
    return ReservedLayout(
        edges[at[first]], edges[at[last] + 1], stream[mine], pool[mine], expandable[mine], small[mine], pools
    )


def _was_small(trace: Trace) -> npt.NDArray[np.bool_]:
    """Whether released memory served small requests. Large ones reserve more than a small segment, and map at least a
    large one's size at once.
    """
    mapped = trace.action == SEGMENT_UNMAP
    small: npt.NDArray[np.bool_] = np.where(mapped, trace.size < LARGE_SEGMENT, trace.size <= SMALL_SEGMENT)
    return small


def gaps(layout: ReservedLayout, alive: LiveBlocks) -> tuple[Ints, Ints, Ints]:
    """For each stretch: idle bytes, largest idle piece, and the idle piece at its upper end."""
    count, address, size = len(layout.low), alive.address, alive.size
    place = np.searchsorted(layout.low, address, "right") - 1
    inside: Chosen = np.flatnonzero(place >= 0)
    inside = inside[address[inside] < layout.high[place[inside]]]
    place, begin = place[inside], address[inside]
    # blocks do not overlap, except in a damaged file
    end = np.maximum.accumulate(np.minimum(begin + size[inside], layout.high[place]))
    opens = np.diff(place, prepend=-1) != 0
    before = np.where(opens, layout.low[place], np.append(0, end[:-1]) if len(end) else end)
    held, largest = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(held, place, end - np.maximum(begin, before))
    np.maximum.at(largest, place, begin - before)
    closes = np.flatnonzero(np.append(opens[1:], True)) if len(place) else np.zeros(0, np.intp)
    width = layout.high - layout.low
    tail = width.copy()
    tail[place[closes]] = (layout.high[place] - end)[closes]
    return width - held, np.maximum(largest, tail), tail


class Remedy(StrEnum):
    """A remedy for the user to try."""

    EMPTY_CACHE = "empty_cache"
    EXPANDABLE_SEGMENTS = "expandable_segments"
    MAX_SPLIT_SIZE = "max_split_size_mb"
    SMALLER_BATCH = "smaller_batch"


@dataclass(frozen=True)
class Help:
    """The effect of one remedy."""

    remedy: Remedy
    bytes: int
    """Maximum bytes made usable; for a smaller batch, the bytes of the forward that must go."""
    enough: bool | None
    """Whether the request would have fitted, at best; None if the missing bytes are unknown."""
    of_bytes: int = 0
    """Bytes made by the forward and alive, for a smaller batch."""


@dataclass(frozen=True)
class PoolRoom:
    """Memory reserved for one stream in one pool, at the failure."""

    pool: tuple[int, int]
    stream: int
    reserved_bytes: int
    idle_bytes: int
    largest_idle_bytes: int


@dataclass(frozen=True)
class Room:
    """Reserved and idle memory at the failure."""

    needed_bytes: int
    """Bytes that the allocator had to request from the device: the request rounded up to a segment, or to the increment
    of an expandable one.
    """
    missing_bytes: int | None
    """Bytes that the device lacked; None if its free memory is unknown, or was not the limit."""
    limited: bool
    """Whether the device had enough, but a limit of the process refused it (`set_per_process_memory_fraction`), or the
    driver.
    """
    idle_bytes: int
    largest_idle_bytes: int
    """Largest idle piece usable for the request: of its stream, pool and size class."""
    empty_bytes: int
    """In empty segments."""
    expandable: bool
    """Whether segments were already expandable."""
    pools: tuple[PoolRoom, ...]
    """Largest first."""
    helps: tuple[Help, ...]


@dataclass(frozen=True, eq=False)
class _Request:
    """The request, and which of the reserved stretches could have served it."""

    bytes: int
    needed: int
    """Bytes needed from the device."""
    free: int | None
    """Free bytes of the device."""
    own_pool: npt.NDArray[np.bool_]
    """For each stretch: whether it belongs to the request's pool."""
    fits: npt.NDArray[np.bool_]
    """For each stretch: whether the request could have been placed there."""

    @property
    def limited(self) -> bool:
        return self.free is not None and self.free >= self.needed

    def fits_with(self, brought: int, needed: int) -> bool | None:
        """Whether this many bytes more would have covered what `needed` lacked."""
        if self.free is None:
            return None
        if self.limited:  # between nothing and everything was missing
            return True if brought >= needed else None if brought else False
        return brought + self.free >= needed


def room_at(snapshot: Snapshot, played: Replay, trace: Trace, event: int) -> Room | None:
    """The memory at `event`, a failed allocation; None if no release was recorded, so that idle memory is unknown."""
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
    """Bytes requested from the device for a request that fits nowhere (get_allocation_size)."""
    if request <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if request < LARGE_SEGMENT // 2:
        return LARGE_SEGMENT
    return _rounded(request, SMALL_SEGMENT)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _request(snapshot: Snapshot, layout: ReservedLayout, trace: Trace, event: int, tail: Ints) -> _Request:
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
        if free is not None and free >= needed:  # idle memory at the end may not have counted
            needed = _rounded(max(size, 1), page)
    return _Request(size, needed, free, own_pool, fits)


def uses_expandable(snapshot: Snapshot, layout: ReservedLayout) -> bool:
    """Whether segments were expandable."""
    return bool(layout.expandable.any()) or snapshot.settings.get("expandable_segments") == "True"


def _first_tail(layout: ReservedLayout, tail: Ints, chosen: npt.NDArray[np.bool_], size: int) -> int:
    """Idle bytes before the lowest unmapped range with room for a request (find_expandable_block); 0
    if there is none.
    """
    places = np.flatnonzero(chosen)
    holes = np.append(layout.low[places[1:]] - layout.high[places[:-1]], np.iinfo(np.int64).max >> 1)
    enough = np.flatnonzero(tail[places] + holes[: len(places)] >= size)
    return int(tail[places[enough[0]]]) if len(enough) else 0


def _helps(
    layout: ReservedLayout, request: _Request, idle: Ints, empty: npt.NDArray[np.bool_], expandable: bool
) -> tuple[Help, ...]:
    """The maximum effect of each setting, and whether it is enough."""
    default = layout.pool == layout.pools.index(DEFAULT_POOL)
    emptied = int(idle[empty & default].sum())
    own_idle = int(idle[request.own_pool].sum())
    joined = 0 if expandable else own_idle
    width = layout.high - layout.low
    # held only by pieces smaller than the request: it would not have been split for them. The setting
    # is for sizes above 20 MiB (CUDAAllocatorConfig.cpp)
    may_split = request.own_pool & ~empty & ~layout.expandable & ~layout.small & (width > LARGE_SEGMENT)
    unsplit = int(width[may_split & (width >= request.bytes) & (width - idle < request.bytes)].max(initial=0))
    # its content needs room elsewhere, so all that was idle must make up for it
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
    """Bytes alive at `event` that the forward made since the start of the trace."""
    alive = played.live_at(event)
    forward = [
        number
        for number in np.unique(played.stacks[alive]).tolist()
        if part_of(snapshot.stacks[number], number) in (StackPart.FORWARD, StackPart.RECOMPUTED)
    ]
    return int(played.sizes[alive[np.isin(played.stacks[alive], forward)]].sum())
