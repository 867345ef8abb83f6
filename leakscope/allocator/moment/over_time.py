"""How did the memory of each stream, pool, label and annotated region change over the trace?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from leakscope.allocator.replaying import Replay
from leakscope.allocator.snapshot import Annotation, Indexes, Ints, Snapshot, Trace

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
    """The event within it after which most was alive; -1 where none is within it."""


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
    mine = np.flatnonzero(code)
    if not len(mine):
        return []
    label = code[mine]
    dies = played.died[mine] < played.events
    event = np.concatenate([played.born[mine], played.died[mine][dies]])
    of = np.concatenate([label, label[dies]])
    change = np.concatenate([played.sizes[mine], -played.sizes[mine][dies]])
    order = np.lexsort((event, of))
    alive = np.cumsum(change[order])
    first = np.flatnonzero(np.diff(of[order], prepend=0))
    before = np.append(0, alive[first[1:] - 1])
    last = np.append(first[1:], len(order)) - 1
    then = (played.born[mine] <= peak) & (played.died[mine] > peak)
    width = len(texts)
    at_peak, count = np.zeros(width, np.int64), np.bincount(label, minlength=width)
    np.add.at(at_peak, label[then], played.sizes[mine][then])
    rows = zip(
        of[order][first].tolist(),
        (np.maximum.reduceat(alive, first) - before).tolist(),
        (alive[last] - before).tolist(),
        strict=True,
    )
    found = [
        Labelled(kind, texts[label], int(count[label]), highest, int(at_peak[label]), end)
        for label, highest, end in rows
    ]
    return sorted(found, key=lambda row: (-row.peak_bytes, row.name))[:_MOST_REGIONS]


def pool_peaks(snapshot: Snapshot, played: Replay, trace: Trace) -> dict[tuple[int, int], int]:
    """The most that was alive in each private pool; before torch 2.12 of the segments alone that are there at the end,
    for an event did not name its pool.
    """
    private = [s for s in snapshot.segments if s.device == played.device and s.pool != (0, 0)]
    named = {pool for pool in trace.pools if pool != (0, 0)}
    peaks: dict[tuple[int, int], int] = {}
    for pool in sorted({segment.pool for segment in private} | named):
        mine = [segment for segment in private if segment.pool == pool]
        low = np.sort(np.array([segment.address for segment in mine], np.int64))
        high = np.sort(np.array([segment.address + segment.total_size for segment in mine], np.int64))
        made, lost, held = (
            _within(address, low, high)
            for address in (
                trace.address[played.born],
                trace.address[played.unknown_frees],
                snapshot.blocks.address[played.ghosts],
            )
        )
        if pool in named:
            number = trace.pools.index(pool)
            made |= trace.pool[played.born] == number
            lost |= trace.pool[played.unknown_frees] == number
        ghosts = int(snapshot.blocks.requested[played.ghosts[held]].sum())
        peaks[pool] = int(_curve(played, made, lost).max(initial=0)) + ghosts
    return peaks


def _within(address: Ints, low: Ints, high: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if not len(low):
        return np.zeros(len(address), np.bool_)
    at = np.searchsorted(low, address, "right") - 1
    inside: np.ndarray[tuple[int], np.dtype[np.bool_]] = (at >= 0) & (address < high[at])
    return inside


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
        begin = np.searchsorted(trace.time_us, [low for low, _ in times])
        end = np.searchsorted(trace.time_us, [high for _, high in times], "right")
        highest = [
            int(low + played.curve[low:high].argmax()) for low, high in zip(begin, end, strict=True) if low < high
        ]
        peak = max(highest, key=lambda event: int(played.curve[event]), default=-1)
        first, last = int(begin[-1]), int(end[-1])
        left = int(played.curve[last - 1] - (played.curve[first - 1] if first else 0)) if last > first else 0
        regions.append(Region(name, len(times), int(played.curve[peak]) if highest else 0, left, peak))
    return tuple(sorted(regions, key=lambda region: (-region.peak_bytes, region.name))[:_MOST_REGIONS])
