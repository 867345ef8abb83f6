"""Memory that is alive at the peak of a step and not used again: its holders, and who could let go of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from leakscope.findings.facts import RunFacts
from leakscope.findings.library import (
    Holders,
    holders_of,
)
from leakscope.findings.model import Hop, HopReason
from leakscope.findings.naming import as_expression, hops
from leakscope.graph.model import HeapGraph, Ints, ObjectKind
from leakscope.graph.ownership import Reach, users_side
from leakscope.graph.paths import ShortestPaths
from leakscope.graph.retained import freed_storages
from leakscope.run.model import Rank
from leakscope.run.rows import AlikeStorage, IdleStorage, Occasion, Phase, StorageLife, WatchedStep


class Releaser(StrEnum):
    """Who could let go of what is idle at the peak."""

    USER = "user"
    """The user's code."""
    LIBRARY = "library"
    """A library, or a call that runs."""
    GRADIENT = "gradient"
    """zero_grad."""
    COMM = "wire"
    """A Work, once its operation is over."""
    AUTOGRAD = "autograd"
    """A backward still to come."""


@dataclass(frozen=True)
class Idle:
    """One storage that was alive at the peak and is not used again."""

    row: IdleStorage
    holders: Holders
    by: Releaser
    """Who could let go of it."""


@dataclass(frozen=True)
class PeakOfStep:
    """The watched step of one rank: its figures, the heap at its peak, and what was idle then."""

    rank: int
    step: WatchedStep
    graph: HeapGraph
    idle: tuple[Idle, ...]
    rows: tuple[StorageLife, ...]
    """All storages of the step that were made and last used where an idle one was; those that are idle for about as
    long are held in the same way, and the same mended line lets go of them."""

    @property
    def rise(self) -> int:
        """Bytes of the peak above what was alive when the step began."""
        return self.step.peak_bytes - self.step.start_bytes

    def held_by(self, who: Releaser) -> list[Idle]:
        """What is idle and this one could let go of."""
        return [idle for idle in self.idle if idle.by == who]

    @property
    def avoidable_bytes(self) -> int:
        """Bytes at the peak that nothing uses again and that the user's code could have let go."""
        return sum(idle.row.bytes for idle in self.held_by(Releaser.USER))

    def fall(self, idle: Sequence[Idle]) -> int:
        """By how much the step's peak falls when these are released after their last use: another moment may be
        the peak then.
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
    """The watched step and what was alive at its peak; None where none was watched to its end."""
    step = next((row for row in rank.lifetimes if isinstance(row, WatchedStep)), None)
    looks = (look for look in rank.looks if look.occasion == Occasion.PEAK and step and look.step == step.step)
    look = next(looks, None)
    return None if step is None or look is None else (step, look.heap)


def peak_of(rank: Rank) -> PeakOfStep | None:
    """What the lifetimes of one rank's watched step show; None where none was watched to its end."""
    watched = heap_at_peak(rank)
    if watched is None:
        return None
    step, graph = watched
    users = users_side(graph)
    rows = [
        row
        for row in rank.lifetimes
        if isinstance(row, IdleStorage) and 0 <= row.storage < len(graph) and graph.freed[row.storage] == 0
    ]
    reached: dict[int, Reach] = {}
    holders = _settled(graph, {row.storage: holders_of(graph, row.storage, users, reached) for row in rows})
    idle = [Idle(row, holders[row.storage], _who(graph, holders[row.storage], row, step)) for row in rows]
    alike = tuple(row for row in rank.lifetimes if isinstance(row, (IdleStorage, AlikeStorage)))
    return PeakOfStep(rank.number, step, graph, tuple(idle), alike)


def _settled(graph: HeapGraph, idle: Mapping[int, Holders]) -> dict[int, Holders]:
    """The holders with what the user reaches only inside a library's objects told as one or the other's.

    The user can let go of such an object where that frees the storage, and mostly what lies idle: an output that was
    used up, not a trainer that still runs.
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
    """Whether this storage is among those that would go, and what lies idle is at least half of their bytes."""
    spent = int(graph.bytes[[s for s in gone.tolist() if s in idle]].sum())
    return storage in gone and 2 * spent >= int(graph.bytes[gone].sum())


def _span(row: StorageLife) -> int:
    """Operations from the last use to the death."""
    return row.died - row.last


def _site(row: StorageLife) -> tuple[str, str]:
    return row.made_at, row.last_use_at


def _who(graph: HeapGraph, holders: Holders, row: IdleStorage, step: WatchedStep) -> Releaser:
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
    """Cuts that are arguments of calls that ran at the peak."""
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
    """How long the storages lived that the step before a watched step had made and let go."""

    step: int
    storages: int
    lag_byte_seconds: float
    """Before the first use."""
    use_byte_seconds: float
    drag_byte_seconds: float
    """After the last use."""


@dataclass(frozen=True, kw_only=True)
class IdleAtPeak(RunFacts):
    """How much of a watched step's peak was not used again, and who could let go of it."""

    step: int
    device: str
    peak_bytes: int
    peak_at: str
    """The line that ran then, "" where it is not known."""
    idle_bytes: int
    by: Mapping[Releaser, int]
    """Those of the idle bytes that each could let go of."""
    unseen_bytes: int
    """What other threads or native code had made unseen; it is beside the peak."""


def drag(rank: Rank) -> tuple[RunFacts, ...]:
    """Two facts of a rank of which a step was watched storage by storage; none of others."""
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
"""Names at the most, chosen, of references to cut."""


def line_above(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """The line of this reference, or of the nearest one above it that has a line."""
    for above in [reference, *paths.path_to(graph, int(graph.holder[reference]))[::-1]]:
        r = graph.reference(above)
        if where := r.where or graph.object(r.holder).where:
            return where
    return ""


def spoken_as(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """As its user would write it, along the shortest path."""
    path = [*paths.path_to(graph, int(graph.holder[reference])), reference]
    return as_expression(graph, path, reference)


def variables(graph: HeapGraph, cuts: Sequence[int]) -> tuple[str, ...]:
    """Their names, where all of them are variables of running functions or of the script; else ()."""
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
    """From the root through the cut down to the storage."""
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
"""Share of the step's peak by which it must fall for a line to be worth reading, chosen: a variable that lives on is
in every plain script. At least `min_bytes` too.
"""


def avoidable_peak_bytes(rank: Rank) -> int | None:
    """Bytes of the watched step's peak that the user's code could have let go; None where no step was watched."""
    peak = peak_of(rank)
    return None if peak is None else peak.avoidable_bytes
