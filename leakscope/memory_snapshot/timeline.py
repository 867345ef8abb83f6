"""Memory over the trace by stream, pool, label and annotated region."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from leakscope.memory_snapshot.model import Annotation, Indexes, Ints, Snapshot, Trace
from leakscope.memory_snapshot.replay import Replay

_MOST_REGIONS = 64
"""Names of annotated regions, and labels of each kind, told at the most, chosen."""


@dataclass(frozen=True)
class StreamPeak:
    """The most that was alive of what was made on one stream."""

    stream: int
    peak_bytes: int
    event: int


@dataclass(frozen=True)
class Region:
    """What happened within an annotation (`record_function`), numbers in its name left out."""

    name: str
    times: int
    peak_bytes: int
    """The most that was alive within it."""
    left_bytes: int
    """What its last time left alive more than there was before."""
    peak_event: int
    """The event within it, or before it, after which most was alive."""


class LabelKind(StrEnum):
    """What the allocator itself writes on an event."""

    COMPILED = "compiled region"
    """`compile_context`, of torch.compile."""
    METADATA = "metadata"
    """`user_metadata`, what the script has set by `torch.cuda.memory._set_memory_metadata`."""


@dataclass(frozen=True)
class Labelled:
    """What was made under one label."""

    kind: LabelKind
    name: str
    allocations: int
    peak_bytes: int
    """The most of it that was alive."""
    at_peak_bytes: int
    """Alive of it when most of all was alive."""
    end_bytes: int


def stream_peaks(snapshot: Snapshot, played: Replay, trace: Trace) -> tuple[StreamPeak, ...]:
    """The peak of each stream, the highest first; allocations alone that the trace or the end knows."""
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
    """What was made under each label, the highest first of each kind; time is that of sorting the allocations.

    `peak`: the event after which most was alive.
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
    return sorted(found, key=lambda row: (-row.peak_bytes, row.name))[:_MOST_REGIONS]


def _levels(played: Replay, code: Indexes, lost: Indexes) -> dict[int, tuple[int, int]]:
    """The most that was alive of each code but 0, and what is at the end; ghosts apart.

    `code` of each allocation, `lost` of each release of what was made before the trace. Time is that of sorting.
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
    """The most that was alive in each private pool; before torch 2.12 of the segments alone that are there at the end,
    for an event did not name its pool.
    """
    segments = sorted((s for s in snapshot.segments if s.device == played.device), key=lambda each: each.address)
    private = sorted(({segment.pool for segment in segments} | set(trace.pools)) - {(0, 0)})
    code = {pool: number for number, pool in enumerate(private, 1)} | {(0, 0): 0}
    low = np.array([segment.address for segment in segments], np.int64)
    high = low + np.array([segment.total_size for segment in segments], np.int64)
    # the last one is of what lies in no segment, and of what names no pool
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
    """Bytes alive after each event of the chosen allocations and of the chosen releases of what was made before."""
    change = np.zeros(played.events + 1, np.int64)
    np.add.at(change, played.born[made], played.sizes[made])
    np.subtract.at(change, played.died[made], played.sizes[made])
    np.subtract.at(change, played.unknown_frees[lost], played.unknown_sizes[lost])
    return np.cumsum(change[:-1]) + int(played.unknown_sizes[lost].sum())


def regions_of(played: Replay, trace: Trace, annotations: Sequence[Annotation]) -> tuple[Region, ...]:
    """Annotated regions by name, those with the highest peak first; empty where events carry no times."""
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
    return tuple(sorted(regions, key=lambda region: (-region.peak_bytes, region.name))[:_MOST_REGIONS])
