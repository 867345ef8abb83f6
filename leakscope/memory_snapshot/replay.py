"""Replays the events of a device: blocks at any moment, and the timeline of memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from leakscope.memory_snapshot.model import (
    ACTIONS,
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    INACTIVE,
    PENDING_FREE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Action,
    Annotation,
    Blocks,
    Indexes,
    Ints,
    Snapshot,
    Trace,
)

Chosen = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Replay:
    """One device's events as allocations with birth and death, and the resulting curves."""

    device: int
    events: int
    born: Chosen
    """Event index of each allocation, in order."""
    died: Chosen
    """Event index of its release; `events` for those alive at the end."""
    sizes: Ints
    """Bytes of each allocation."""
    stacks: npt.NDArray[np.int32]
    unknown_frees: Chosen
    """Events that release memory whose allocation is not in the trace."""
    unknown_sizes: Ints
    ghosts: Chosen
    """Indexes into `Snapshot.blocks`: active blocks whose allocation is not in the trace."""
    ghost_bytes: int
    unmatched: int
    """Allocations alive in the trace without an active block; 0 in a sound file."""
    pending: Chosen
    """Requested releases that work on another stream delayed until the end."""
    curve: Ints
    """Bytes alive after each event, including ghosts and memory released by unknown frees."""
    traced_curve: Ints
    """Bytes alive after each event of allocations in the trace."""
    pending_curve: Ints
    """Bytes with a requested but incomplete release, after each event."""
    reserved_curve: Ints
    """Bytes reserved from the driver after each event."""
    freed_by: Action | None
    """The event that releases memory: FREE_COMPLETED, FREE_REQUESTED if the former was skipped, None if both were."""
    allocs_recorded: bool
    """False if releases were recorded and allocations were skipped: the curves are then meaningless."""

    @property
    def live(self) -> Chosen:
        """Allocations alive at the end."""
        return np.flatnonzero(self.died >= self.events)

    def live_at(self, event: int) -> Chosen:
        """Allocations alive directly after `event`."""
        return np.flatnonzero((self.born <= event) & (self.died > event))

    def unknown_at(self, event: int) -> int:
        """Bytes alive directly after `event` that are known only from a later release."""
        return int(self.unknown_sizes[self.unknown_frees > event].sum())


def replay(snapshot: Snapshot, device: int) -> Replay:
    """Replay the events of `device` (an index into the traces; a device without a trace has ghosts only)."""
    trace = next((trace for trace in snapshot.traces if trace.device == device), _empty_trace(device))
    blocks, segments = snapshot.blocks, snapshot.segments
    on_device = np.array([segment.device == device for segment in segments], np.bool_)
    mine = np.flatnonzero(on_device[blocks.segment]) if len(blocks) else np.zeros(0, np.intp)
    active = mine[blocks.state[mine] != INACTIVE]
    count, freed_by = len(trace), _releasing_action(trace, blocks, active)
    born, died, unknown = _pair(trace, freed_by)
    sizes = trace.size[born]
    alive = np.flatnonzero(died >= count)
    is_ghost, confirmed = _match(trace.address[born[alive]], sizes[alive], blocks, active)
    if freed_by is None:
        died[alive[~confirmed]] = max(count - 1, 0)
        confirmed = confirmed[confirmed]
    ghosts = active[is_ghost]
    traced_change = np.zeros(count + 1, np.int64)
    np.add.at(traced_change, born, sizes)
    np.subtract.at(traced_change, died, sizes)
    traced = np.cumsum(traced_change[:count])
    lost = np.zeros(count, np.int64)
    lost[unknown] = trace.size[unknown]
    ghost_bytes = int(blocks.requested[ghosts].sum())
    pending, pending_curve = _pending(trace)
    counts = np.bincount(trace.action, minlength=ALLOC + 3)
    return Replay(
        device=device,
        events=count,
        born=born,
        died=died,
        sizes=sizes,
        stacks=trace.stack[born],
        unknown_frees=unknown,
        unknown_sizes=trace.size[unknown],
        ghosts=ghosts,
        ghost_bytes=ghost_bytes,
        unmatched=int((~confirmed).sum()),
        pending=pending,
        curve=traced + ghost_bytes + int(lost.sum()) - np.cumsum(lost),
        traced_curve=traced,
        pending_curve=pending_curve,
        reserved_curve=_reserved(trace, sum(segment.total_size for segment in segments if segment.device == device)),
        freed_by=None if freed_by is None else ACTIONS[freed_by],
        allocs_recorded=not (counts[ALLOC] == 0 and counts[FREE_REQUESTED] + counts[FREE_COMPLETED] > 1),
    )


def _empty_trace(device: int) -> Trace:
    none = np.zeros(0, np.int64)
    index = none.astype(np.int32)
    return Trace(device, none.astype(np.uint8), (), none, none, none, none, none, index, index, index, index, ("",), ())


def _releasing_action(trace: Trace, blocks: Blocks, active: Chosen) -> int | None:
    """`free_completed`; `free_requested` if `skip_actions` (torch 2.11) left it out; None if both are missing.

    A few requests alone do not indicate skipping if their blocks still wait for another stream.
    """
    if (trace.action == FREE_COMPLETED).any():
        return FREE_COMPLETED
    requested = trace.address[trace.action == FREE_REQUESTED]
    waiting = blocks.address[active[blocks.state[active] == PENDING_FREE]]
    if len(requested) and not np.isin(requested, waiting).all():
        return FREE_REQUESTED
    return FREE_COMPLETED if len(requested) else None


def _pair(trace: Trace, freed_by: int | None) -> tuple[Chosen, Chosen, Chosen]:
    """Births and deaths of allocations, and releases without an allocation.

    Addresses are reused, so an allocation is paired with the next event at its address.
    """
    count = len(trace)
    counted = trace.action == ALLOC
    if freed_by is not None:
        counted |= trace.action == freed_by
    events = np.flatnonzero(counted)
    order = events[np.argsort(trace.address[events], kind="stable")]
    is_alloc = trace.action[order] == ALLOC
    same = np.zeros(len(order), np.bool_)
    same[1:] = trace.address[order[1:]] == trace.address[order[:-1]]
    after = np.append(order[1:], count)
    next_same = np.append(same[1:], False)
    deaths = np.where(next_same, after, count)
    follows_alloc = same & np.append(False, is_alloc[:-1])
    births = order[is_alloc]
    by_time = np.argsort(births, kind="stable")
    return births[by_time], deaths[is_alloc][by_time], np.sort(order[~is_alloc & ~follows_alloc])


def _match(
    addresses: Ints, sizes: Ints, blocks: Blocks, active: Chosen
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which active blocks are ghosts, and which live allocations have an active block."""
    alive = set(zip(addresses.tolist(), sizes.tolist(), strict=True))
    left = list(zip(blocks.address[active].tolist(), blocks.requested[active].tolist(), strict=True))
    there = set(left)
    ghosts = np.array([pair not in alive for pair in left], np.bool_)
    confirmed = [pair in there for pair in zip(addresses.tolist(), sizes.tolist(), strict=True)]
    return ghosts, np.array(confirmed, np.bool_)


def _pending(trace: Trace) -> tuple[Chosen, Ints]:
    """Requested releases not completed by the end, and their bytes after each event.

    A request completed by the very next event never waited.
    """
    change = np.zeros(len(trace) + 1, np.int64)
    if not (trace.action == FREE_COMPLETED).any() and (trace.action == FREE_REQUESTED).sum() > 1:
        return np.zeros(0, np.intp), change[:-1]
    events = np.flatnonzero(trace.action <= FREE_COMPLETED)
    order = events[np.argsort(trace.address[events], kind="stable")]
    action = trace.action[order]
    following = np.append(order[1:], len(trace))
    done = np.zeros(len(order), np.bool_)
    done[:-1] = (trace.address[order[1:]] == trace.address[order[:-1]]) & (action[1:] == FREE_COMPLETED)
    requests = action == FREE_REQUESTED
    waited = requests & ~(done & (following == order + 1))
    np.add.at(change, order[waited], trace.size[order[waited]])
    settled = waited & done
    np.subtract.at(change, following[settled], trace.size[order[settled]])
    return np.sort(order[requests & ~done]), np.cumsum(change[:-1])


def _reserved(trace: Trace, at_end: int) -> Ints:
    sign = np.zeros(256, np.int64)
    sign[[SEGMENT_ALLOC, SEGMENT_MAP]] = 1
    sign[[SEGMENT_FREE, SEGMENT_UNMAP]] = -1
    change = sign[trace.action] * trace.size
    return at_end - (int(change.sum()) - np.cumsum(change))


_MAX_REGIONS = 64
"""Maximum names of annotated regions, and labels of each kind, reported. Heuristic."""


@dataclass(frozen=True)
class StreamPeak:
    """Peak of allocations made on one stream."""

    stream: int
    peak_bytes: int
    event: int


@dataclass(frozen=True)
class Region:
    """What happened within an annotation (`record_function`), named without numbers."""

    name: str
    times: int
    peak_bytes: int
    """Peak within it."""
    left_bytes: int
    """Bytes that its last occurrence added."""
    peak_event: int
    """The event of the peak within it, or before it."""


class LabelKind(StrEnum):
    """The kind of label that the allocator writes on an event."""

    COMPILED = "compiled region"
    """`compile_context`, of torch.compile."""
    METADATA = "metadata"
    """`user_metadata`, set by the script with `torch.cuda.memory._set_memory_metadata`."""


@dataclass(frozen=True)
class Labelled:
    """Allocations with one label."""

    kind: LabelKind
    name: str
    allocations: int
    peak_bytes: int
    """Their peak."""
    at_peak_bytes: int
    """Their bytes at the overall peak."""
    end_bytes: int


def stream_peaks(snapshot: Snapshot, played: Replay, trace: Trace) -> tuple[StreamPeak, ...]:
    """The peak of each stream, the highest first; counts allocations known from the trace or the end."""
    if not played.events:
        return ()
    made, lost = trace.stream[played.born], trace.stream[played.unknown_frees]
    of_segment = np.array([segment.stream for segment in snapshot.segments], np.int64)
    ghosts = of_segment[snapshot.blocks.segment[played.ghosts]] if len(played.ghosts) else np.zeros(0, np.int64)
    peaks = []
    for stream in np.unique(np.concatenate([made, lost, ghosts])).tolist():
        curve = _curve(played, made == stream, lost == stream)
        curve += int(snapshot.blocks.requested[played.ghosts[ghosts == stream]].sum())
        event = int(curve.argmax())
        peaks.append(StreamPeak(stream, int(curve[event]), event))
    return tuple(sorted(peaks, key=lambda peak: (-peak.peak_bytes, peak.stream)))


def labelled(played: Replay, trace: Trace, peak: int) -> tuple[Labelled, ...]:
    """Allocations by label, the highest peak first within each kind; time is that of sorting the allocations.

    `peak` is the event of the overall peak.
    """
    codes = ((LabelKind.COMPILED, trace.compiled), (LabelKind.METADATA, trace.metadata))
    return tuple(row for kind, code in codes for row in _labelled(played, trace.texts, kind, code[played.born], peak))


def _labelled(played: Replay, texts: Sequence[str], kind: LabelKind, code: Indexes, peak: int) -> list[Labelled]:
    then = (played.born <= peak) & (played.died > peak)
    at_peak, count = np.zeros(len(texts), np.int64), np.bincount(code, minlength=len(texts))
    np.add.at(at_peak, code[then], played.sizes[then])
    found = [
        Labelled(kind, texts[label], int(count[label]), highest, int(at_peak[label]), end)
        for label, (highest, end) in _levels(played, code, np.zeros(len(played.unknown_frees), np.int32)).items()
    ]
    return sorted(found, key=lambda row: (-row.peak_bytes, row.name))[:_MAX_REGIONS]


def _levels(played: Replay, code: Indexes, lost: Indexes) -> dict[int, tuple[int, int]]:
    """Peak of each code except 0, and bytes at the end; without ghosts.

    `code` of each allocation, `lost` of each release of earlier memory. Time is that of sorting.
    """
    dies = played.died < played.events
    event = np.concatenate([played.born, played.died[dies], played.unknown_frees])
    of = np.concatenate([code, code[dies], lost])
    change = np.concatenate([played.sizes, -played.sizes[dies], -played.unknown_sizes])
    order = np.lexsort((event, of))
    order = order[of[order] > 0]
    if not len(order):
        return {}
    there = np.zeros(int(of.max()) + 1, np.int64)
    np.add.at(there, lost, played.unknown_sizes)
    alive = np.cumsum(change[order])
    first = np.flatnonzero(np.diff(of[order], prepend=0))
    begin = there[of[order][first]] - np.append(0, alive[first[1:] - 1])
    last = np.append(first[1:], len(order)) - 1
    highest = np.maximum(there[of[order][first]], np.maximum.reduceat(alive, first) + begin)
    rows = zip(of[order][first].tolist(), highest.tolist(), (alive[last] + begin).tolist(), strict=True)
    return {number: (most, end) for number, most, end in rows}


def pool_peaks(snapshot: Snapshot, played: Replay, trace: Trace) -> dict[tuple[int, int], int]:
    """Peak of each private pool; before torch 2.12 of segments present at the end only, since events did not name their
    pool.
    """
    segments = sorted((s for s in snapshot.segments if s.device == played.device), key=lambda each: each.address)
    private = sorted(({segment.pool for segment in segments} | set(trace.pools)) - {(0, 0)})
    code = {pool: number for number, pool in enumerate(private, 1)} | {(0, 0): 0}
    low = np.array([segment.address for segment in segments], np.int64)
    high = low + np.array([segment.total_size for segment in segments], np.int64)
    # the last one is for memory in no segment, and events that name no pool
    of_segment = np.array([*(code[segment.pool] for segment in segments), 0], np.int32)
    of_named = np.array([*(code[pool] for pool in trace.pools), 0], np.int32)

    def codes(address: Ints, named: Indexes) -> Indexes:
        at = np.searchsorted(low, address, "right") - 1
        if len(segments):
            at = np.where((at >= 0) & (address < high[at]), at, len(segments))
        chosen: Indexes = np.where(named < 0, of_segment[at], of_named[named])
        return chosen

    made = codes(trace.address[played.born], trace.pool[played.born])
    lost = codes(trace.address[played.unknown_frees], trace.pool[played.unknown_frees])
    levels = _levels(played, made, lost)
    ghosts = snapshot.blocks.address[played.ghosts]
    there = np.zeros(len(private) + 1, np.int64)
    np.add.at(there, codes(ghosts, np.full(len(ghosts), -1, np.int32)), snapshot.blocks.requested[played.ghosts])
    return {pool: levels.get(code[pool], (0, 0))[0] + int(there[code[pool]]) for pool in private}


def _curve(
    played: Replay,
    made: np.ndarray[tuple[int], np.dtype[np.bool_]],
    lost: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> Ints:
    """Bytes alive after each event of the chosen allocations and the chosen releases of earlier memory."""
    change = np.zeros(played.events + 1, np.int64)
    np.add.at(change, played.born[made], played.sizes[made])
    np.subtract.at(change, played.died[made], played.sizes[made])
    np.subtract.at(change, played.unknown_frees[lost], played.unknown_sizes[lost])
    return np.cumsum(change[:-1]) + int(played.unknown_sizes[lost].sum())


def regions_of(played: Replay, trace: Trace, annotations: Sequence[Annotation]) -> tuple[Region, ...]:
    """Annotated regions by name, those with the highest peak first; empty if events have no times."""
    if not played.events or int(trace.time_us.min()) < 0:
        return ()
    opened: dict[str, list[int]] = {}
    spans: dict[str, list[tuple[int, int]]] = {}
    for note in sorted(annotations, key=lambda note: note.time_us):
        if note.device != played.device:
            continue
        if note.starts:
            opened.setdefault(note.name, []).append(note.time_us)
        elif opened.get(note.name):
            spans.setdefault(re.sub(r"\d+", "N", note.name), []).append((opened[note.name].pop(), note.time_us))
    regions = []
    for name, times in spans.items():
        # what was alive before the first event within it was alive in it too
        begin = np.maximum(np.searchsorted(trace.time_us, [low for low, _ in times]) - 1, 0)
        end = np.maximum(np.searchsorted(trace.time_us, [high for _, high in times], "right"), begin + 1)
        highest = [int(low + played.curve[low:high].argmax()) for low, high in zip(begin, end, strict=True)]
        peak = max(highest, key=lambda event: int(played.curve[event]))
        left = int(played.curve[end[-1] - 1] - played.curve[begin[-1]])
        regions.append(Region(name, len(times), int(played.curve[peak]), left, peak))
    return tuple(sorted(regions, key=lambda region: (-region.peak_bytes, region.name))[:_MAX_REGIONS])
