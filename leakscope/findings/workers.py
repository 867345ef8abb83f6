"""Memory of the worker processes of each DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from leakscope.run.model import Rank
from leakscope.run.rows import SharedObjects, WorkerMemory, WorkersRead, WorkersStarted


class WorkerLineKind(StrEnum):
    """The kind of memory that workers have for themselves."""

    COPIES = "copies"
    """Pages with the parent's Python objects of one container, copied when they were read."""
    OTHER_COPIES = "other_copies"
    """Other pages of the parent: reading and full collections write to them."""
    OWN = "allocated"
    """Allocated since the first sample."""
    MAPPED = "mapped"
    """Files, and shared memory of no other process."""
    BEGAN = "initial"
    """For workers that were not forked, what they had at the first sample."""


@dataclass(frozen=True)
class WorkerLine:
    """One line of the breakdown of one loader's workers."""

    kind: WorkerLineKind
    bytes: int
    """Negative if it shrank."""
    holder: str = ""
    """The container whose objects were copied: `self.samples of Images`."""


@dataclass(frozen=True)
class WorkersInterval:
    """Growth of the unique memory of all workers of one loader, between two consecutive samples of one lifetime."""

    life: int
    from_step: int
    to_step: int
    unique_bytes: int
    """Sum of the lines."""
    lines: tuple[WorkerLine, ...]


@dataclass(frozen=True)
class OneWorker:
    """Peak memory of one worker, by id over all epochs, in bytes."""

    worker: int
    unique_bytes: int
    proportional_bytes: int
    grew_bytes: int
    """Growth of its unique memory in its longest lifetime."""


@dataclass(frozen=True)
class LoaderMemory:
    """Memory of the workers of one loader."""

    started: WorkersStarted
    """Of its last lifetime."""
    lives: int
    """Number of iterators that started workers; persistent workers have one for all epochs."""
    step: int
    """Step of the sample with the most unique memory."""
    unique_bytes: int
    """Total unique memory in that sample: the sum of the lines."""
    proportional_bytes: int
    lines: tuple[WorkerLine, ...]
    """Largest first."""
    workers: tuple[OneWorker, ...]
    intervals: tuple[WorkersInterval, ...]
    sent_bytes: int = 0
    """Maximum bytes queued in shared memory."""
    sent: int = 0
    """Number of shared memory segments for it."""
    most_sent: int | None = None
    """Maximum batches that can be queued, by the loader's arguments."""
    pinned_bytes: int | None = None

    @property
    def gives_back(self) -> bool:
        """Whether workers were restarted, which returned their memory."""
        return self.lives > 1


@dataclass(frozen=True)
class Life:
    """All samples of the workers of one iterator."""

    started: WorkersStarted
    reads: tuple[WorkersRead, ...]


def lives_of(rank: Rank) -> dict[int, list[Life]]:
    """Map each loader to its lifetimes, in order, without those never sampled."""
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
    """Memory of the workers of each loader of one rank."""
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
    """Unique bytes of all workers."""
    return sum(memory.unique for memory in read.workers)


def named(shared: SharedObjects) -> str:
    """The name, `self.samples of Images`, or the variable of a module."""
    return f"{shared.written} of {shared.owner}" if shared.written.startswith("self.") else shared.written


def _lines(life: Life, read: WorkersRead) -> Iterator[WorkerLine]:
    """The parts of the workers' unique memory; the last line is the remainder."""
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
