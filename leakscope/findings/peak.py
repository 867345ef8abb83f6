"""Memory that is alive at the peak of a step and not used again: its holders, and who could let go of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from leakscope.findings.facts import RunFacts
from leakscope.findings.library import StorageHolders, holders_of
from leakscope.findings.model import Hop, HopReason
from leakscope.findings.naming import as_expression, hops
from leakscope.graph.model import REACHABLE, HeapGraph, Ints, ObjectKind
from leakscope.graph.ownership import Reach, users_side
from leakscope.graph.paths import ShortestPaths
from leakscope.graph.retained import freed_storages
from leakscope.run.model import Rank
from leakscope.run.rows import AlikeStorage, IdleStorage, Occasion, Phase, StorageLife, WatchedStep


class Releaser(StrEnum):
    """Who could release memory that is idle at the peak."""

    USER = "user"
    """The user's code."""
    LIBRARY = "library"
    """A library, or a running call."""
    GRADIENT = "gradient"
    """zero_grad."""
    COMM = "wire"
    """A Work, after its operation."""
    AUTOGRAD = "autograd"
    """A backward that has not run yet."""


@dataclass(frozen=True)
class Idle:
    """One storage that was alive at the peak and is not used again."""

    row: IdleStorage
    holders: StorageHolders
    by: Releaser
    """Who could release it."""


@dataclass(frozen=True)
class PeakOfStep:
    """The watched step of one rank: its figures, the heap at its peak, and idle memory."""

    rank: int
    step: WatchedStep
    graph: HeapGraph
    idle: tuple[Idle, ...]
    rows: tuple[StorageLife, ...]
    """All storages of the step allocated and last used at the same lines as an idle one; those with a similar idle time
    are held in the same way, and the same fix releases them.
    """

    @property
    def rise(self) -> int:
        """Bytes of the peak above the start of the step."""
        return self.step.peak_bytes - self.step.start_bytes

    def held_by(self, who: Releaser) -> list[Idle]:
        """Idle storages that this releaser could release."""
        return [idle for idle in self.idle if idle.by == who]

    @property
    def avoidable_bytes(self) -> int:
        """Bytes at the peak that nothing uses again and that the user's code could have released."""
        return sum(idle.row.bytes for idle in self.held_by(Releaser.USER))

    def fall(self, idle: Sequence[Idle]) -> int:
        """Decrease of the step's peak if these are released after their last use: another moment may
        become the peak.
        """
        spans: dict[tuple[str, str], int] = {}
        for entry in idle:
            spans[_site(entry.row)] = min(_span(entry.row), spans.get(_site(entry.row), _span(entry.row)))
        rows = [row for row in self.rows if _site(row) in spans and 2 * _span(row) >= spans[_site(row)]]
        heights = [
            live - sum(row.bytes for row in rows if row.last < number < row.died) for number, live in self.step.curve
        ]
        return self.step.peak_bytes - max(heights, default=self.step.peak_bytes)


def heap_at_peak(rank: Rank) -> tuple[WatchedStep, HeapGraph] | None:
    """The watched step and the heap at its peak; None if no step was watched to its end."""
    step = next((row for row in rank.lifetimes if isinstance(row, WatchedStep)), None)
    snapshots = (
        snapshot
        for snapshot in rank.heap_snapshots
        if snapshot.occasion == Occasion.PEAK and step and snapshot.step == step.step
    )
    snapshot = next(snapshots, None)
    return None if step is None or snapshot is None else (step, snapshot.heap)


def peak_of(rank: Rank) -> PeakOfStep | None:
    """The lifetimes of one rank's watched step; None if no step was watched to its end."""
    watched = heap_at_peak(rank)
    if watched is None:
        return None
    step, graph = watched
    users = users_side(graph)
    rows = [
        row
        for row in rank.lifetimes
        if isinstance(row, IdleStorage) and 0 <= row.storage < len(graph) and graph.freed[row.storage] == REACHABLE
    ]
    reached: dict[int, Reach] = {}
    holders = _settled(graph, {row.storage: holders_of(graph, row.storage, users, reached) for row in rows})
    idle = [Idle(row, holders[row.storage], _who(graph, holders[row.storage], row, step)) for row in rows]
    alike = tuple(row for row in rank.lifetimes if isinstance(row, (IdleStorage, AlikeStorage)))
    return PeakOfStep(rank.number, step, graph, tuple(idle), alike)


def _settled(graph: HeapGraph, idle: Mapping[int, StorageHolders]) -> dict[int, StorageHolders]:
    """The holders, with what the user reaches only inside library objects assigned to one side.

    The user can release such an object if that frees the storage, and mostly idle memory: an output that was used up,
    not a running trainer.
    """
    known: dict[tuple[int, ...], Ints] = {}
    settled = dict(idle)
    for storage, holders in idle.items():
        if holders.inside and not (holders.library or holders.native):
            cuts = tuple(sorted({*holders.users, *holders.handles, *holders.packed}))
            if cuts not in known:
                known[cuts] = freed_storages(graph, np.asarray(cuts, dtype=np.int64))
            if frees_mostly_idle(graph, known[cuts], storage, idle):
                settled[storage] = replace(
                    holders, users=tuple(sorted({*holders.users, *holders.handles})), inside=(), handles=()
                )
    return settled


def frees_mostly_idle(graph: HeapGraph, gone: Ints, storage: int, idle: Collection[int]) -> bool:
    """Whether this storage is among those that would be freed, and at least half of their bytes are idle."""
    spent = int(graph.bytes[[s for s in gone.tolist() if s in idle]].sum())
    return storage in gone and 2 * spent >= int(graph.bytes[gone].sum())


def _span(row: StorageLife) -> int:
    """Operations from the last use to the death."""
    return row.died - row.last


def _site(row: StorageLife) -> tuple[str, str]:
    return row.made_at, row.last_use_at


def _who(graph: HeapGraph, holders: StorageHolders, row: IdleStorage, step: WatchedStep) -> Releaser:
    if holders.gradient:
        return Releaser.GRADIENT
    if holders.native or holders.library or holders.inside or not (holders.users or holders.work):
        return Releaser.LIBRARY
    if holders.work:
        return Releaser.COMM
    if holders.packed and not arguments_cut(graph, step, holders.users):
        return Releaser.LIBRARY
    if holders.saved and step.backward_follows and row.last_phase != Phase.BACKWARD:
        return Releaser.AUTOGRAD
    return Releaser.USER


def arguments_cut(graph: HeapGraph, step: WatchedStep, cuts: Sequence[int]) -> list[str]:
    """Cuts that are arguments of calls running at the peak."""
    running = set(step.arguments)
    names = []
    for cut in cuts:
        r = graph.reference(cut)
        holder = graph.object(r.holder)
        if holder.kind == ObjectKind.FRAME and (holder.name, r.name.removeprefix("local ")) in running:
            names.append(r.name.removeprefix("local "))
    return list(dict.fromkeys(names))


@dataclass(frozen=True, kw_only=True)
class LagUseDrag(RunFacts):
    """Lifetimes of the storages that the step before a watched step had allocated and freed."""

    step: int
    storages: int
    lag_byte_seconds: float
    """Before the first use."""
    use_byte_seconds: float
    drag_byte_seconds: float
    """After the last use."""


@dataclass(frozen=True, kw_only=True)
class IdleAtPeak(RunFacts):
    """The part of a watched step's peak that is not used again, and who could release it."""

    step: int
    device: str
    peak_bytes: int
    peak_at: str
    """The line that was running, "" if unknown."""
    idle_bytes: int
    by: Mapping[Releaser, int]
    """Idle bytes that each releaser could release."""
    unseen_bytes: int
    """Bytes of other threads or native code, outside the peak."""


def drag(rank: Rank) -> tuple[RunFacts, ...]:
    """Two facts about a rank with a watched step; none about others."""
    peak = peak_of(rank)
    return () if peak is None else (*_lived(rank.number, peak.step), _idle_at_peak(rank.number, peak))


def _lived(rank: int, step: WatchedStep) -> list[RunFacts]:
    if step.lag_byte_seconds + step.use_byte_seconds + step.drag_byte_seconds <= 0:
        return []
    return [
        LagUseDrag(
            rank=rank,
            step=step.step,
            storages=step.storages,
            lag_byte_seconds=step.lag_byte_seconds,
            use_byte_seconds=step.use_byte_seconds,
            drag_byte_seconds=step.drag_byte_seconds,
        )
    ]


def _idle_at_peak(rank: int, peak: PeakOfStep) -> RunFacts:
    step = peak.step
    return IdleAtPeak(
        rank=rank,
        step=step.step,
        device=step.device,
        peak_bytes=step.peak_bytes,
        peak_at=step.peak_at,
        idle_bytes=sum(storage.row.bytes for storage in peak.idle),
        by={who: sum(storage.row.bytes for storage in peak.held_by(who)) for who in Releaser},
        unseen_bytes=step.unseen_bytes,
    )


NAMES_SHOWN = 6
"""Maximum names of references to cut. Heuristic."""


def line_above(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """The line of this reference, or of the nearest one above it with a line."""
    for above in [reference, *paths.path_to(graph, int(graph.holder[reference]))[::-1]]:
        r = graph.reference(above)
        if where := r.where or graph.object(r.holder).where:
            return where
    return ""


def spoken_as(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """As written in code, along the shortest path."""
    path = [*paths.path_to(graph, int(graph.holder[reference])), reference]
    return as_expression(graph, path, reference)


def variables(graph: HeapGraph, cuts: Sequence[int]) -> tuple[str, ...]:
    """Their names if all of them are variables of running functions or the script; else ()."""
    holders = [graph.object(int(graph.holder[c])) for c in cuts]
    own = [holder.kind == ObjectKind.FRAME or holder.name == "__main__" for holder in holders]
    names = dict.fromkeys(graph.reference(c).name.removeprefix("local ").removeprefix(".") for c in cuts)
    return tuple(names) if all(own) and all(map(str.isidentifier, names)) else ()


def together(spoken: Sequence[str]) -> str:
    """`inputs and outputs in step(), batch in main()`."""
    places: dict[str, list[str]] = defaultdict(list)
    for text in spoken[:NAMES_SHOWN]:
        name, _, place = text.partition(" in ")
        places[place].append(name)
    parts = [_listed(names) + (f" in {place}" if place else "") for place, names in places.items()]
    more = f" and {len(spoken) - NAMES_SHOWN} more" if len(spoken) > NAMES_SHOWN else ""
    return ", ".join(parts) + more


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def trace_through(graph: HeapGraph, paths: ShortestPaths, cut: int, storage: int, frees: int) -> tuple[Hop, ...]:
    """The trace from the root through the cut to the storage."""
    above = paths.path_to(graph, int(graph.holder[cut]))
    path = [*above, cut]
    came: dict[int, int] = {int(graph.held[cut]): -1}
    waiting = [int(graph.held[cut])]
    while waiting and storage not in came:
        here = waiting.pop(0)
        for reference in graph.out_of(here).tolist():
            held = int(graph.held[reference])
            if held not in came:
                came[held] = reference
                waiting.append(held)
    down: list[int] = []
    at = storage
    while came.get(at, -1) >= 0:
        down.append(came[at])
        at = int(graph.holder[came[at]])
    path += down[::-1]
    start = int(graph.holder[path[0]])
    return hops(graph, start, path, len(above) + 1, {cut: frees}, (HopReason.STILL_NEEDED, HopReason.NOT_USED_AGAIN))


WORTH_SHARE = 0.01
"""Minimum decrease of the step's peak, as a share, to be reported. Heuristic: every plain script has variables that
live on. At least `Thresholds.for_counters` too.
"""


def avoidable_peak_bytes(rank: Rank) -> int | None:
    """Bytes of the watched step's peak that the user's code could have released; None without a watched step."""
    peak = peak_of(rank)
    return None if peak is None else peak.avoidable_bytes
