"""Where did the memory of a loader's workers go? Line by line, to the last byte that the kernel has for them alone.

It is memory of other processes: nothing of it is in the ledger of the rank, which is what the rank's allocator counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from leakscope.record.model import Rank
from leakscope.record.rows.workers import SharedObjects, WorkerMemory, WorkersRead, WorkersStarted


class WorkerLineKind(StrEnum):
    """What the memory is that workers have for themselves."""

    COPIES = "copies"
    """Pages with the parent's Python objects of one container, copied as they were read."""
    OTHER_COPIES = "other_copies"
    """Other pages of the parent's: reading, and each full collection, writes to them."""
    OWN = "own_heap"
    """What they have allocated since they were first read."""
    MAPPED = "mapped"
    """Files, and shared memory that no other process has."""
    BEGAN = "began_with"
    """Of workers that were not forked, what they had when they were first read."""


@dataclass(frozen=True)
class WorkerLine:
    """One line of the ledger of one loader's workers."""

    kind: WorkerLineKind
    bytes: int
    """Below zero where it shrank."""
    holder: str = ""
    """The container whose objects were copied: `self.samples of Images`."""


@dataclass(frozen=True)
class WorkersInterval:
    """Growth of what all workers of one loader have for themselves, between two readings in a row of one life."""

    life: int
    from_step: int
    to_step: int
    unique_bytes: int
    """The sum of the lines."""
    lines: tuple[WorkerLine, ...]


@dataclass(frozen=True)
class OneWorker:
    """What one worker took at its fullest, by its id over all epochs, in bytes."""

    worker: int
    unique_bytes: int
    proportional_bytes: int
    grew_bytes: int
    """By how much what it had for itself rose in its longest life."""


@dataclass(frozen=True)
class LoaderMemory:
    """What the workers of one loader took."""

    started: WorkersStarted
    """Of its last life."""
    lives: int
    """Iterators that started workers; of persistent workers one, however many epochs there were."""
    step: int
    """Of the reading at which the workers had most for themselves."""
    unique_bytes: int
    """What they had then, all together: the sum of the lines."""
    proportional_bytes: int
    lines: tuple[WorkerLine, ...]
    """Largest first."""
    workers: tuple[OneWorker, ...]
    intervals: tuple[WorkersInterval, ...]
    sent_bytes: int = 0
    """The most that waited to be taken, in shared memory."""
    sent: int = 0
    """Pieces of shared memory that was in."""
    most_sent: int | None = None
    """Batches that can wait, by what the loader was made with."""
    pinned_bytes: int | None = None

    @property
    def gives_back(self) -> bool:
        """Whether workers ended and were started anew: what they had was given back."""
        return self.lives > 1


@dataclass(frozen=True)
class Life:
    """All readings of the workers of one iterator."""

    started: WorkersStarted
    reads: tuple[WorkersRead, ...]


def lives_of(rank: Rank) -> dict[int, list[Life]]:
    """Loader to its lives, in order; those that were never read are left out."""
    reads: dict[tuple[int, int], list[WorkersRead]] = {}
    for row in rank.loader_workers:
        if isinstance(row, WorkersRead):
            reads.setdefault((row.loader, row.life), []).append(row)
    found: dict[int, list[Life]] = {}
    for row in rank.loader_workers:
        if isinstance(row, WorkersStarted) and (row.loader, row.life) in reads:
            found.setdefault(row.loader, []).append(Life(row, tuple(reads.pop((row.loader, row.life)))))
    return found


def loaders_of(rank: Rank) -> tuple[LoaderMemory, ...]:
    """What the workers of each loader of one rank took."""
    return tuple(_memory(lives, _starts(rank, number)) for number, lives in sorted(lives_of(rank).items()))


def _starts(rank: Rank, loader: int) -> int:
    return sum(isinstance(row, WorkersStarted) and row.loader == loader for row in rank.loader_workers)


def _memory(lives: Sequence[Life], starts: int) -> LoaderMemory:
    life, fullest = max(((life, read) for life in lives for read in life.reads), key=lambda found: unique(found[1]))
    reads = [read for life in lives for read in life.reads]
    most = max(reads, key=lambda read: read.sent_bytes)
    started = lives[-1].started
    return LoaderMemory(
        started=started,
        lives=starts,
        step=fullest.step,
        unique_bytes=unique(fullest),
        proportional_bytes=sum(memory.proportional for memory in fullest.workers),
        lines=tuple(sorted(_lines(life, fullest), key=lambda line: -line.bytes)),
        workers=_each_worker(lives, fullest),
        intervals=tuple(_intervals(lives)),
        sent_bytes=most.sent_bytes,
        sent=most.sent,
        most_sent=None if started.prefetch is None else started.prefetch * started.workers,
        pinned_bytes=max((read.pinned_bytes for read in reads if read.pinned_bytes is not None), default=None),
    )


def unique(read: WorkersRead) -> int:
    """Bytes that all workers have for themselves."""
    return sum(memory.unique for memory in read.workers)


def named(shared: SharedObjects) -> str:
    """`self.samples of Images`, or the variable of a module."""
    return f"{shared.written} of {shared.owner}" if shared.written.startswith("self.") else shared.written


def _lines(life: Life, read: WorkersRead) -> Iterator[WorkerLine]:
    """What makes up all that the workers have for themselves; the last line is what remains."""
    first = {memory.worker: memory for memory in life.reads[0].workers}
    rest = unique(read)
    for place, shared in enumerate(life.started.shared):
        copied = sum(_copied(memory, place) for memory in read.workers)
        rest -= copied
        yield WorkerLine(WorkerLineKind.COPIES, copied, named(shared))
    own = sum(memory.anonymous - first.get(memory.worker, memory).anonymous for memory in read.workers)
    mapped = sum(memory.mapped for memory in read.workers)
    yield WorkerLine(WorkerLineKind.OWN, own)
    yield WorkerLine(WorkerLineKind.MAPPED, mapped)
    forked = life.started.method == "fork"
    yield WorkerLine(WorkerLineKind.OTHER_COPIES if forked else WorkerLineKind.BEGAN, rest - own - mapped)


def _copied(memory: WorkerMemory, place: int) -> int:
    return memory.copied[place] if place < len(memory.copied) else 0


def _intervals(lives: Sequence[Life]) -> Iterator[WorkersInterval]:
    for life in lives:
        for before, after in pairwise(life.reads):
            old, new = list(_lines(life, before)), list(_lines(life, after))
            lines = tuple(
                WorkerLine(line.kind, line.bytes - was.bytes, line.holder) for was, line in zip(old, new, strict=True)
            )
            grown = unique(after) - unique(before)
            yield WorkersInterval(life.started.life, before.step, after.step, grown, lines)


def _each_worker(lives: Sequence[Life], fullest: WorkersRead) -> tuple[OneWorker, ...]:
    then = {memory.worker: memory for memory in fullest.workers}
    return tuple(
        OneWorker(worker, memory.unique, memory.proportional, max(_grew(life, worker) for life in lives))
        for worker, memory in sorted(then.items())
    )


def _grew(life: Life, worker: int) -> int:
    seen = [memory.unique for read in life.reads for memory in read.workers if memory.worker == worker]
    return max(seen) - seen[0] if seen else 0
