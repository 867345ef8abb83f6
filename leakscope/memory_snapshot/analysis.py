"""The analysis of one snapshot: layout, fragmentation, private pools and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from leakscope.memory_snapshot import DeviceLayout
from leakscope.memory_snapshot.growth import NO_STEPS, StepGrowth, step_growth
from leakscope.memory_snapshot.model import (
    ALLOCATED,
    INACTIVE,
    OOM,
    PENDING_FREE,
    STATES,
    UNKNOWN,
    Action,
    Blocks,
    Ints,
    Snapshot,
    Trace,
)
from leakscope.memory_snapshot.oom import Room, room_at
from leakscope.memory_snapshot.peak import Category, StackSites, alive_at, by_site, categories_of, end_stacks
from leakscope.memory_snapshot.replay import (
    Chosen,
    Labelled,
    Region,
    Replay,
    StreamPeak,
    labelled,
    pool_peaks,
    regions_of,
    replay,
    stream_peaks,
)
from leakscope.memory_snapshot.sites import Site, SiteBytes, sites_of


@dataclass(frozen=True)
class Fragmentation:
    """Reserved memory that no tensor uses."""

    inactive_bytes: int
    """Reserved and not active."""
    releasable_bytes: int
    """In segments without any active block: `empty_cache()` returns them."""
    stuck_bytes: int
    """In segments with an active block: neither returned nor usable for anything larger than its pieces."""
    largest_stuck_bytes: int
    """The largest piece among the stuck ones."""
    rounding_bytes: int
    """What rounding added to the active blocks."""


@dataclass(frozen=True)
class Pool:
    """One memory pool of the allocator."""

    pool: tuple[int, int]
    owner: str
    """`default`, `CUDA graph capture`, or `MemPool or graph pool handle`."""
    segments: int
    reserved_bytes: int
    active_bytes: int
    pending_bytes: int
    peak_bytes: int
    """Peak bytes alive in it, as requested; without a history, and for the default pool, the active bytes."""


def fragmentation_of(blocks: Blocks, mine: Chosen) -> Fragmentation:
    """Fragmentation over the blocks `mine` (indexes)."""
    idle = blocks.state[mine] == INACTIVE
    size, segment = blocks.size[mine], blocks.segment[mine]
    in_use = np.isin(segment, segment[~idle])
    stuck = size[idle & in_use]
    return Fragmentation(
        inactive_bytes=int(size[idle].sum()),
        releasable_bytes=int(size[idle & ~in_use].sum()),
        stuck_bytes=int(stuck.sum()),
        largest_stuck_bytes=int(stuck.max(initial=0)),
        rounding_bytes=int((size[~idle] - blocks.requested[mine[~idle]]).sum()),
    )


def pools_of(snapshot: Snapshot, device: int, peaks: Mapping[tuple[int, int], int]) -> tuple[Pool, ...]:
    """The pools of `device`, the default one first; `peaks` are those of the private ones."""
    blocks = snapshot.blocks
    count = len(snapshot.segments)
    active, pending = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(active, blocks.segment, np.where(blocks.state == INACTIVE, 0, blocks.size))
    np.add.at(pending, blocks.segment, np.where(blocks.state == PENDING_FREE, blocks.size, 0))
    requested = np.zeros(count, np.int64)
    np.add.at(requested, blocks.segment, np.where(blocks.state == INACTIVE, 0, blocks.requested))
    members: dict[tuple[int, int], list[int]] = {}
    members.update((pool, []) for pool in peaks if peaks[pool])  # one that is also freed by the end
    for index, segment in enumerate(snapshot.segments):
        if segment.device == device:
            members.setdefault(segment.pool, []).append(index)
    return tuple(
        Pool(
            pool=pool,
            owner=_owner(pool),
            segments=len(indexes),
            reserved_bytes=sum(snapshot.segments[index].total_size for index in indexes),
            active_bytes=int(active[indexes].sum()),
            pending_bytes=int(pending[indexes].sum()),
            peak_bytes=max(peaks.get(pool, 0), int(requested[indexes].sum())),
        )
        for pool, indexes in sorted(members.items())
    )


def _owner(pool: tuple[int, int]) -> str:
    if pool == (0, 0):
        return "default"
    return "CUDA graph capture" if pool[0] else "MemPool or graph pool handle"


class Placed(NamedTuple):
    """Where a storage's memory begins."""

    device: int
    address: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Joined:
    """The active blocks of a snapshot, each with the storage in it."""

    blocks: Ints
    """Indexes into `Snapshot.blocks`."""
    storage: Ints
    """For each the index in the list of storages, the first if there are several; -1 if there is none."""
    unplaced: Ints
    """Indexes in the list of storages that are in no active block: memory of another allocator."""


def join(snapshot: Snapshot, storages: Sequence[Placed]) -> Joined:
    """Find for each active block the storage whose memory begins in it.

    A block with a requested release has no storage, whatever begins there.
    """
    blocks = snapshot.blocks
    owner = np.array([segment.device for segment in snapshot.segments], np.int64)
    active = np.flatnonzero(blocks.state != INACTIVE)
    place_of = np.full(len(active), -1, np.int64)
    placed = np.zeros(len(storages), np.bool_)
    device = np.array([storage.device for storage in storages], np.int64)
    address = np.array([storage.address for storage in storages], np.uint64)
    for number in np.unique(device).tolist():
        mine = np.flatnonzero(owner[blocks.segment[active]] == number) if len(active) else active
        theirs = np.flatnonzero(device == number)
        begins = blocks.address[active[mine]].view(np.uint64)
        order = np.argsort(begins, kind="stable")
        mine, begins = mine[order], begins[order]
        ends = begins + blocks.size[active[mine]].astype(np.uint64)
        at = np.searchsorted(begins, address[theirs], "right") - 1
        inside = at >= 0
        inside[inside] = address[theirs][inside] < ends[at[inside]]
        placed[theirs[inside]] = True
        for place, block in zip(theirs[inside].tolist()[::-1], mine[at[inside]].tolist()[::-1], strict=True):
            place_of[block] = place
    place_of[blocks.state[active] == PENDING_FREE] = -1
    return Joined(active, place_of, np.flatnonzero(~placed))


def layouts(snapshot: Snapshot) -> tuple[DeviceLayout, ...]:
    """One row for each device with segments."""
    blocks, segments = snapshot.blocks, snapshot.segments
    owner = np.array([segment.device for segment in segments], np.int64)
    rows = []
    for device in sorted({segment.device for segment in segments}):
        mine = np.flatnonzero(owner[blocks.segment] == device) if len(blocks) else np.zeros(0, np.intp)
        size, state = blocks.size[mine], blocks.state[mine]
        scraps = fragmentation_of(blocks, mine)
        here = [segment for segment in segments if segment.device == device]
        rows.append(
            DeviceLayout(
                device=device,
                reserved=sum(segment.total_size for segment in here),
                active=int(size[state != INACTIVE].sum()),
                allocated=int(size[state == ALLOCATED].sum()),
                pending=int(size[state == PENDING_FREE].sum()),
                rounding=scraps.rounding_bytes,
                stuck=scraps.stuck_bytes,
                private=sum(segment.total_size for segment in here if segment.pool != (0, 0)),
            )
        )
    return tuple(rows)


class HistoryKind(StrEnum):
    """How complete the history in a file is."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    """Recording began late, or its ring dropped the oldest events."""
    NONE = "none"


@dataclass(frozen=True)
class MemoryTimeline:
    """Bytes alive and reserved over the trace."""

    clock: bool
    """True when `at` is in seconds since the first event, False when it counts events (before torch 2.2)."""
    at: tuple[float, ...]
    event: tuple[int, ...]
    """The event of the peak within each stretch that a point represents."""
    alive: tuple[int, ...]
    reserved: tuple[int, ...]
    categories: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Parts of `alive` by category, judged from stacks and life spans."""


@dataclass(frozen=True)
class LiveAt:
    """What was alive directly after one event."""

    event: int
    alive_bytes: int
    reserved_bytes: int
    categories: Mapping[str, int]
    """Bytes by category, the largest first, judged from stacks and life spans."""
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
    """Idle reserved memory at that time and what would have helped; None if no release was recorded."""


@dataclass(frozen=True)
class PendingFrees:
    """Memory whose tensors are dead but which work on another stream still holds (`record_stream`)."""

    blocks: int
    bytes: int
    requests: int
    """Releases asked for in the trace and not completed by its end."""
    highest_bytes: int
    """Peak bytes in this state over the events of the trace."""
    sites: tuple[SiteBytes, ...]


@dataclass(frozen=True)
class DeviceReport:
    """One device of one snapshot; byte counts are after rounding for blocks, as requested for allocations."""

    device: int
    events: int
    actions: Mapping[str, int]
    history: HistoryKind
    segments: int
    reserved_bytes: int
    active_bytes: int
    allocated_bytes: int
    requested_bytes: int
    """Bytes requested for the active blocks."""
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
    """-1 without a history; the peak is then the state at the end."""
    end_sites: tuple[SiteBytes, ...]
    peak_sites: tuple[SiteBytes, ...]
    peak_categories: Mapping[str, int]
    """Bytes by category at the peak (without a history, at the end), the largest first, judged from stacks and life
    spans.
    """
    moment: LiveAt | None
    """The moment requested by `--at`."""
    streams: tuple[StreamPeak, ...]
    regions: tuple[Region, ...]
    region_categories: tuple[Mapping[str, int], ...]
    """Bytes by category at the peak within each region, the largest first; in the order of `regions`."""
    labels: tuple[Labelled, ...]
    growth: StepGrowth
    pending: PendingFrees
    fragmentation: Fragmentation
    pools: tuple[Pool, ...]
    out_of_memory: tuple[OutOfMemory, ...]
    timeline: MemoryTimeline
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SnapshotReport:
    """The analysis of one file."""

    name: str
    rank: int | None
    devices: tuple[DeviceReport, ...]
    """Devices with memory or events; at least one."""
    settings: Mapping[str, str]


_TIMELINE_POINTS = 600
"""Points of a thinned timeline; each keeps the maximum of its stretch."""
_MAX_FAILURES = 8
"""Maximum failures reported per device. Heuristic."""


def analyse(snapshot: Snapshot, rank: int | None = None, frames: int = 1, at: int | None = None) -> SnapshotReport:
    """Analyse one snapshot.

    Reports `frames` of the user's frames for each site, and what was alive after the event `at`.
    """
    sites = StackSites(sites_of(snapshot.stacks), snapshot.stacks, frames)
    used = {segment.device for segment in snapshot.segments} | {trace.device for trace in snapshot.traces if len(trace)}
    devices = tuple(_device_report(snapshot, device, sites, at) for device in sorted(used or {0}))
    return SnapshotReport(snapshot.name, rank, devices, dict(snapshot.settings))


def _device_report(snapshot: Snapshot, device: int, sites: StackSites, at: int | None) -> DeviceReport:
    played = replay(snapshot, device)
    trace = next((trace for trace in snapshot.traces if trace.device == device), None)
    blocks = snapshot.blocks
    owner = np.array([segment.device for segment in snapshot.segments], np.int64)
    mine = np.flatnonzero(owner[blocks.segment] == device) if len(blocks) else np.zeros(0, np.intp)
    state = blocks.state[mine]
    active = mine[state != INACTIVE]
    segments = [segment for segment in snapshot.segments if segment.device == device]
    history = _history(played, snapshot.overflowed)
    peak = -1 if history == HistoryKind.NONE else int(played.curve.argmax())
    traced_peak = int(played.traced_curve.max(initial=0))
    live = played.live
    regions = regions_of(played, trace, snapshot.annotations) if trace else ()
    judged = categories_of(snapshot, played)
    end_sites = by_site(sites, *end_stacks(snapshot, played, trace, active))
    kinds = judged.over(played, blocks.requested[played.ghosts])
    return DeviceReport(
        device=device,
        events=played.events,
        actions=_action_counts(trace),
        history=history,
        segments=len(segments),
        reserved_bytes=sum(segment.total_size for segment in segments),
        active_bytes=int(blocks.size[active].sum()),
        allocated_bytes=int(blocks.size[mine[state == ALLOCATED]].sum()),
        requested_bytes=int(blocks.requested[active].sum()),
        blocks={name: int((state == code).sum()) for code, name in enumerate(STATES)},
        live_events=len(live),
        live_bytes=int(played.sizes[live].sum()),
        ghost_blocks=len(played.ghosts),
        ghost_bytes=played.ghost_bytes,
        unknown_frees=len(played.unknown_frees),
        traced_peak_bytes=traced_peak,
        traced_peak_event=int(played.traced_curve.argmax()) if traced_peak else -1,
        peak_bytes=int(blocks.requested[active].sum()) if peak < 0 else int(played.curve[peak]),
        peak_event=peak,
        end_sites=end_sites,
        peak_sites=end_sites if peak < 0 else alive_at(snapshot, played, sites, peak),
        peak_categories=_by_kind(judged.at_end(played, blocks.requested[played.ghosts]))
        if peak < 0
        else _at_event(kinds, peak),
        moment=_moment(snapshot, played, sites, kinds, at) if at is not None and at < played.events else None,
        streams=stream_peaks(snapshot, played, trace) if trace else (),
        regions=regions,
        region_categories=tuple(_at_event(kinds, region.peak_event) for region in regions),
        labels=labelled(played, trace, peak) if trace else (),
        growth=step_growth(played, trace, snapshot.annotations, sites.of, sites.stacks) if trace else NO_STEPS,
        pending=_pending(snapshot, played, sites, mine[state == PENDING_FREE]),
        fragmentation=fragmentation_of(blocks, mine),
        pools=pools_of(snapshot, device, pool_peaks(snapshot, played, trace) if trace else {}),
        out_of_memory=_failures(snapshot, played, trace, sites),
        timeline=_timeline(played, None if peak < 0 else trace, kinds),
        notes=_notes(played, snapshot),
    )


def _moment(
    snapshot: Snapshot, played: Replay, sites: StackSites, kinds: Mapping[Category, Ints], event: int
) -> LiveAt:
    return LiveAt(
        event=event,
        alive_bytes=int(played.curve[event]),
        reserved_bytes=int(played.reserved_curve[event]),
        categories=_at_event(kinds, event),
        sites=alive_at(snapshot, played, sites, event),
    )


def _at_event(kinds: Mapping[Category, Ints], event: int) -> dict[str, int]:
    if event < 0:
        return {}
    return _by_kind({kind: int(curve[event]) for kind, curve in kinds.items()})


def _by_kind(found: Mapping[Category, int]) -> dict[str, int]:
    return {str(kind): count for kind, count in sorted(found.items(), key=lambda entry: -entry[1]) if count}


def _action_counts(trace: Trace | None) -> dict[str, int]:
    if trace is None:
        return {}
    counts = np.bincount(trace.action, minlength=len(trace.action_names)).tolist()
    return {name: count for name, count in zip(trace.action_names, counts, strict=True) if count}


def _history(played: Replay, overflowed: bool) -> HistoryKind:
    # `enabled="state"` forces a ring of one event, so one event is no history.
    if played.events <= 1 or not played.allocs_recorded:
        return HistoryKind.NONE
    whole = not (overflowed or len(played.ghosts) or len(played.unknown_frees))
    return HistoryKind.COMPLETE if whole else HistoryKind.PARTIAL


def _pending(snapshot: Snapshot, played: Replay, sites: StackSites, waiting: Chosen) -> PendingFrees:
    blocks = snapshot.blocks
    return PendingFrees(
        blocks=len(waiting),
        bytes=int(blocks.size[waiting].sum()),
        requests=len(played.pending),
        highest_bytes=int(played.pending_curve.max(initial=0)),
        sites=by_site(sites, blocks.stack[waiting], blocks.size[waiting]),
    )


def _failures(snapshot: Snapshot, played: Replay, trace: Trace | None, sites: StackSites) -> tuple[OutOfMemory, ...]:
    """The first failures of the trace, since a caught and retried one repeats, and the last."""
    if trace is None:
        return ()
    events = np.flatnonzero(trace.action == OOM).tolist()
    chosen = events if len(events) <= _MAX_FAILURES else [*events[: _MAX_FAILURES - 1], events[-1]]
    return tuple(_failure(snapshot, played, trace, sites, event) for event in chosen)


def _failure(snapshot: Snapshot, played: Replay, trace: Trace, sites: StackSites, event: int) -> OutOfMemory:
    free = int(trace.device_free[event])
    return OutOfMemory(
        event=event,
        at=_seconds(trace, event),
        requested_bytes=max(int(trace.size[event]), 0),
        device_free_bytes=None if free == UNKNOWN else free,
        alive_bytes=int(played.curve[event]),
        reserved_bytes=int(played.reserved_curve[event]),
        site=sites.of[trace.stack[event]],
        alive_sites=alive_at(snapshot, played, sites, event),
        room=room_at(snapshot, played, trace, event),
    )


def _seconds(trace: Trace, event: int) -> float | None:
    time = int(trace.time_us[event])
    return None if time < 0 else (time - int(trace.time_us[0])) / 1e6


def _timeline(played: Replay, trace: Trace | None, kinds: Mapping[Category, Ints]) -> MemoryTimeline:
    """The curves, thinned so that every peak is kept."""
    if trace is None:
        return MemoryTimeline(False, (), (), (), ())
    clock = bool((trace.time_us >= 0).all())
    edges = np.unique(np.linspace(0, played.events, min(_TIMELINE_POINTS, played.events) + 1).astype(np.int64))[:-1]
    widths = np.diff(np.append(edges, played.events))
    alive = np.maximum.reduceat(played.curve, edges)
    reserved = np.maximum.reduceat(played.reserved_curve, edges)
    highest = [
        int(first + played.curve[first : first + width].argmax()) for first, width in zip(edges, widths, strict=True)
    ]
    by_kind = {str(kind): tuple(curve[highest].tolist()) for kind, curve in kinds.items()}
    at = (trace.time_us[highest] - trace.time_us[0]) / 1e6 if clock else np.array(highest, np.float64)
    return MemoryTimeline(
        clock, tuple(at.tolist()), tuple(highest), tuple(alive.tolist()), tuple(reserved.tolist()), by_kind
    )


def _notes(played: Replay, snapshot: Snapshot) -> tuple[str, ...]:
    notes = []
    if played.events == 1:
        notes.append("only one event, as when recording the state only: there is no history to replay")
    elif played.events == 0:
        notes.append("no events: recording was off, or stopped before the snapshot was taken")
    if not played.allocs_recorded:
        notes.append("allocations were skipped while recording, so the trace cannot be replayed")
    if played.freed_by == Action.FREE_REQUESTED:
        notes.append(
            "free_completed events were skipped while recording, so memory counts as free once its release is requested"
        )
    if played.freed_by is None and played.events > 1 and len(played.born):
        notes.append("no frees were recorded; they are inferred from reused addresses and the blocks left at the end")
    if played.unmatched:
        notes.append(
            f"{played.unmatched} allocations alive in the trace match no active block: the file is inconsistent"
        )
    if snapshot.overflowed:
        notes.append("the ring of events overflowed: the oldest events are missing")
    elif played.events > 1 and (len(played.ghosts) or len(played.unknown_frees)):
        notes.append(
            "the trace begins after the first allocation: recording started late or its ring dropped the oldest events"
        )
    return tuple(notes)
