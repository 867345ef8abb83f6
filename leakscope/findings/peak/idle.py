"""What is alive at the step's peak and never used again, and who could let go of it then?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from leakscope.findings.ownership.holders import Holders, holders_of
from leakscope.graph.model import HeapGraph, Ints, ObjectKind
from leakscope.graph.ownership import Reach, users_side
from leakscope.graph.retained import freed_storages
from leakscope.record.kinds import Occasion, Phase
from leakscope.record.model import Rank
from leakscope.record.rows.lifetimes import AlikeStorage, IdleStorage, StorageLife, WatchedStep


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
