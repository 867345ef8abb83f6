"""How was the reserved memory laid out at one moment? Put together from the end's segments and the events between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leakscope.allocator.replaying import Chosen, Replay
from leakscope.allocator.snapshot import (
    INACTIVE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Ints,
    Segment,
    Snapshot,
    Trace,
)

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
class Layout:
    """Stretches of reserved memory, in the order of their addresses, one array per field."""

    low: Ints
    high: Ints
    stream: Ints
    pool: Ints
    """Index into `pools`."""
    expandable: npt.NDArray[np.bool_]
    small: npt.NDArray[np.bool_]
    """Whether only small requests are served from it (`segment_type`)."""
    pools: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Alive:
    """All blocks that were in use at the moment, in the order of their addresses, one array per field."""

    address: Ints
    size: Ints
    """Bytes after rounding, with what was too little to be split off."""


def alive_in(layout: Layout, snapshot: Snapshot, played: Replay, trace: Trace, event: int) -> Alive:
    """What was in use right after `event`.

    The sizes of what was still there at the end are the file's own; those of the rest are what the allocator makes of
    a request.
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
        # what is free is always joined, so the allocator had all up to the next block then
        low, upper = int(np.searchsorted(address, address[at], "right")), int(np.searchsorted(address, high))
        then = (born[low:upper] < max(born[at], 0)) & (died[low:upper] > born[at])
        most = int(address[low:upper][then].min(initial=high)) - int(address[at])
        if most - int(size[at]) <= SMALL_REQUEST or size[at] >= unsplit:
            size[at] = most
    return Alive(address[there], size[there])


def rounded(size: Ints, divisions: Sequence[int] = ()) -> Ints:
    """The sizes of the blocks for requests (round_size; with `divisions`, roundup_power2_next_division)."""
    asked = np.maximum(size, 1)
    plain: Ints = -(-asked // _ROUNDING) * _ROUNDING
    if not divisions:
        return plain
    floor = 1 << np.frexp(asked.astype(np.float64))[1].astype(np.int64) - 1
    number = np.clip(np.frexp(asked.astype(np.float64))[1] - 21, 0, len(divisions) - 1)
    parts = np.array(divisions, np.int64)[number]
    part = np.maximum(floor // np.maximum(parts, 1), 1)
    divided = -(-asked // part) * part
    return np.where((parts > 1) & (asked > _ROUNDING * parts), divided, plain)


def _doubtful(layout: Layout, address: Ints, size: Ints, chosen: Chosen) -> list[tuple[int, int]]:
    """(block, end of its stretch) of those of `chosen` that may be larger than what was asked for: in segments for
    large requests. Small and expandable ones are split to the last 512 bytes (should_split).
    """
    if not len(layout.low):
        return []
    place = np.searchsorted(layout.low, address[chosen], "right") - 1
    inside = (place >= 0) & (address[chosen] + size[chosen] < layout.high[place])
    whole = inside & ~layout.small[place] & ~layout.expandable[place]
    return list(zip(chosen[whole].tolist(), layout.high[place[whole]].tolist(), strict=True))


def _setting(snapshot: Snapshot, name: str) -> int:
    """A size among the allocator's settings; beyond any size where there is none."""
    text = snapshot.settings.get(name, "")
    return int(text) if text.isdecimal() and int(text) else 1 << 62


def layout_at(snapshot: Snapshot, trace: Trace, event: int) -> Layout:
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
) -> Layout:
    """Pieces side by side that belong to one segment, or that can be expanded into each other, as one."""
    pools = tuple(sorted({segment.pool for segment in segments} | {DEFAULT_POOL} | set(trace.pools)))
    index = {pool: at for at, pool in enumerate(pools)}
    expandable = np.concatenate(
        [np.array([segment.expandable for segment in segments], np.bool_), trace.action == SEGMENT_UNMAP]
    )
    stream = np.concatenate([np.array([segment.stream for segment in segments], np.int64), trace.stream])
    # before torch 2.12 an event did not name its pool: what was given back is then taken for the default pool's
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
    return Layout(edges[at[first]], edges[at[last] + 1], stream[mine], pool[mine], expandable[mine], small[mine], pools)


def _was_small(trace: Trace) -> npt.NDArray[np.bool_]:
    """Of what was given back: whether it served small requests. Large ones reserve more than a small segment, and map
    at least a large one's size at once.
    """
    mapped = trace.action == SEGMENT_UNMAP
    small: npt.NDArray[np.bool_] = np.where(mapped, trace.size < LARGE_SEGMENT, trace.size <= SMALL_SEGMENT)
    return small


def gaps(layout: Layout, alive: Alive) -> tuple[Ints, Ints, Ints]:
    """Of each stretch: its idle bytes, its largest idle piece, and the idle piece at its upper end."""
    count, address, size = len(layout.low), alive.address, alive.size
    place = np.searchsorted(layout.low, address, "right") - 1
    inside: Chosen = np.flatnonzero(place >= 0)
    inside = inside[address[inside] < layout.high[place[inside]]]
    place, begin = place[inside], address[inside]
    # blocks do not overlap, but those of a damaged file may
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
