"""What does one snapshot say about the memory of its rank?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leakscope.allocator.figures import (
    DeviceReport,
    History,
    HostReport,
    Moment,
    OutOfMemory,
    PendingFrees,
    SnapshotReport,
    Timeline,
)
from leakscope.allocator.growth.steps import NO_STEPS, step_growth
from leakscope.allocator.layout import fragmentation_of, pools_of
from leakscope.allocator.moment.alive import Places, alive_at, by_site, end_stacks, places_of
from leakscope.allocator.moment.categories import Category, categories_of
from leakscope.allocator.moment.over_time import labelled, pool_peaks, regions_of, stream_peaks
from leakscope.allocator.moment.room import room_at
from leakscope.allocator.replaying import Chosen, Replay, out_of_memory_events, replay
from leakscope.allocator.snapshot import (
    ALLOCATED,
    INACTIVE,
    PENDING_FREE,
    STATES,
    UNKNOWN,
    Action,
    Ints,
    Snapshot,
    Trace,
)  # fmt: skip

_POINTS = 600
"""Points a timeline is thinned to; each keeps the highest value of its stretch."""
_MOST_FAILURES = 8
"""Failures of one device told at the most, chosen."""


def analyse(snapshot: Snapshot, rank: int | None = None, frames: int = 1, at: int | None = None) -> SnapshotReport:
    """The report on one snapshot.

    Of each place `frames` of the user's frames are told, and of the event `at` what was alive after it.
    """
    sites = places_of(snapshot, frames)
    used = {segment.device for segment in snapshot.segments} | {trace.device for trace in snapshot.traces if len(trace)}
    devices = tuple(_device_report(snapshot, device, sites, at) for device in sorted(used or {0}))
    return SnapshotReport(snapshot.name, rank, devices, _host_report(snapshot), dict(snapshot.settings))


def _host_report(snapshot: Snapshot) -> HostReport | None:
    if not snapshot.host_segments and not snapshot.host_traces and not snapshot.host_unknown:
        return None
    host = snapshot.host_segments
    return HostReport(
        segments=len(host),
        reserved_bytes=sum(segment.size for segment in host),
        allocated_bytes=sum(segment.allocated for segment in host),
        active_bytes=sum(segment.active for segment in host),
        events=sum(len(trace) for trace in snapshot.host_traces),
        unknown=snapshot.host_unknown,
    )


def _device_report(snapshot: Snapshot, device: int, sites: Places, at: int | None) -> DeviceReport:
    played = replay(snapshot, device)
    trace = next((trace for trace in snapshot.traces if trace.device == device), None)
    blocks = snapshot.blocks
    owner = np.array([segment.device for segment in snapshot.segments], np.int64)
    mine = np.flatnonzero(owner[blocks.segment] == device) if len(blocks) else np.zeros(0, np.intp)
    state = blocks.state[mine]
    active = mine[state != INACTIVE]
    segments = [segment for segment in snapshot.segments if segment.device == device]
    history = _history(played, snapshot.overflowed)
    peak = -1 if history == History.NONE else int(played.curve.argmax())
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


def _moment(snapshot: Snapshot, played: Replay, sites: Places, kinds: Mapping[Category, Ints], event: int) -> Moment:
    return Moment(
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


def _history(played: Replay, overflowed: bool) -> History:
    # `enabled="state"` forces a ring of one event, so one event is no history.
    if played.events <= 1 or not played.allocs_recorded:
        return History.NONE
    whole = not (overflowed or len(played.ghosts) or len(played.unknown_frees))
    return History.COMPLETE if whole else History.PARTIAL


def _pending(snapshot: Snapshot, played: Replay, sites: Places, waiting: Chosen) -> PendingFrees:
    blocks = snapshot.blocks
    return PendingFrees(
        blocks=len(waiting),
        bytes=int(blocks.size[waiting].sum()),
        requests=len(played.pending),
        highest_bytes=int(played.pending_curve.max(initial=0)),
        sites=by_site(sites, blocks.stack[waiting], blocks.size[waiting]),
    )


def _failures(snapshot: Snapshot, played: Replay, trace: Trace | None, sites: Places) -> tuple[OutOfMemory, ...]:
    """The first failures of the trace, for a caught and retried one repeats itself, and the last."""
    if trace is None:
        return ()
    events = out_of_memory_events(trace).tolist()
    chosen = events if len(events) <= _MOST_FAILURES else [*events[: _MOST_FAILURES - 1], events[-1]]
    return tuple(_failure(snapshot, played, trace, sites, event) for event in chosen)


def _failure(snapshot: Snapshot, played: Replay, trace: Trace, sites: Places, event: int) -> OutOfMemory:
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


def _timeline(played: Replay, trace: Trace | None, kinds: Mapping[Category, Ints]) -> Timeline:
    """The curves, thinned so that every peak stays."""
    if trace is None:
        return Timeline(False, (), (), (), ())
    clock = bool((trace.time_us >= 0).all())
    edges = np.unique(np.linspace(0, played.events, min(_POINTS, played.events) + 1).astype(np.int64))[:-1]
    widths = np.diff(np.append(edges, played.events))
    alive = np.maximum.reduceat(played.curve, edges)
    reserved = np.maximum.reduceat(played.reserved_curve, edges)
    highest = [
        int(first + played.curve[first : first + width].argmax()) for first, width in zip(edges, widths, strict=True)
    ]
    by_kind = {str(kind): tuple(curve[highest].tolist()) for kind, curve in kinds.items()}
    at = (trace.time_us[highest] - trace.time_us[0]) / 1e6 if clock else np.array(highest, np.float64)
    return Timeline(clock, tuple(at.tolist()), tuple(highest), tuple(alive.tolist()), tuple(reserved.tolist()), by_kind)


def _notes(played: Replay, snapshot: Snapshot) -> tuple[str, ...]:
    notes = []
    if played.events == 1:
        notes.append("one event only, which is what recording of the state alone leaves: there is no history to replay")
    elif played.events == 0:
        notes.append("no events: recording was off, or was ended before the snapshot was taken")
    if not played.allocs_recorded:
        notes.append("allocations were skipped while recording, so the trace cannot be replayed")
    if played.freed_by == Action.FREE_REQUESTED:
        notes.append(
            "free_completed events were skipped while recording, so memory counts as free once its release is asked for"
        )
    if played.freed_by is None and played.events > 1 and len(played.born):
        notes.append(
            "no release was recorded; what died is told only by reused addresses and by the blocks left at the end"
        )
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
