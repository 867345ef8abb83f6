"""The findings of a run as frozen data: `Finding`, `Cut`, `Hop`, the growth breakdown and the reasons of a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from leakscope.findings.counters import AlsoGrows
from leakscope.findings.facts import (
    AliveAtEnd,
    Beside,
    Bounded,
    CameToRest,
    CommBuffers,
    EmptiedLater,
    Facts,
    FollowsInput,
    FreedBy,
    HeldByCall,
    HopStatus,
    OnlyTensorsFreed,
    Origin,
    RunFacts,
    Severity,
    TooLarge,
    Upstream,
)
from leakscope.graph.model import ObjectKind
from leakscope.graph.ownership import is_library_line
from leakscope.run.model import Ended, Rank
from leakscope.run.rows import SharedObjects, StartedProcess, WorkerMemory, WorkersRead, WorkersStarted
from leakscope.run.suppression import Suppression
from leakscope.units import bytes_text
from leakscope.verdict import Returned, Verdict


class LineKind(StrEnum):
    """What growth is, as far as it is known."""

    LEAKS = "leaks"
    LIBRARY = "library"
    """Closed or held by a library, leak or not."""
    BOUND = "bounded"
    GARBAGE = "awaiting_gc"
    """In cycles, and no leak by its growth."""
    SLOW = "below_threshold"
    """Of something that grows, by too little or at too few looks for a verdict."""
    RESTED = "plateaued"
    """Grew once, or comes and goes."""
    FOLLOWS = "follows_input"
    """Made anew in each step, and larger where its input was larger."""
    APART = "suppressed"
    """Of findings that are suppressed or were there before."""
    OBJECTS = "python_objects"
    """Numpy arrays, bytes and other objects that are no tensors."""
    GRAD_NODES = "autograd_nodes"
    """C++ memory of autograd graphs, by their number of nodes."""
    BLOCKS = "native_blocks"
    """Of an accelerator's allocator: blocks that are no storage, and what blocks are larger than their storages."""
    UNATTRIBUTED = "unattributed"
    """What is left of the counted bytes, with its sign."""


class RestedKind(StrEnum):
    """What the memory is for that came to rest."""

    OPTIMIZER = "optimizer state"
    PARAMETER = "parameters and gradients"
    OTHER = "other tensors"


@dataclass(frozen=True)
class Line:
    """One line of a ledger."""

    kind: LineKind
    bytes: int
    """Growth, below zero where it shrank."""
    fingerprint: str = ""
    """Of the finding that it is of."""
    holder: str = ""
    """What keeps it, as the user would write it."""
    rested: RestedKind | None = None

    @property
    def name(self) -> tuple[str, ...]:
        """What it has in common with the same line of other intervals."""
        return self.kind, self.fingerprint, self.rested or ""


@dataclass(frozen=True)
class LedgerInterval:
    """Growth between two looks in a row of one rank, on one kind of device."""

    from_step: int
    to_step: int
    counted_bytes: int | None
    """Growth that the allocator counted, the sum of the lines; None where nothing counts."""
    lines: tuple[Line, ...]
    counted_on: str = "cpu"

    @property
    def grown(self) -> int:
        """Growth that was counted or, where nothing counts, that was seen."""
        return sum(line.bytes for line in self.lines) if self.counted_bytes is None else self.counted_bytes


@dataclass(frozen=True)
class Grown:
    """What the memory of one rank did, and where its growth went."""

    rank: int
    bytes: int
    """Growth, below zero where it shrank."""
    from_step: int
    to_step: int
    looks: int
    """Of which it was read; 0 for the counters at the end of each step, and at the end of the main code."""
    per_step: float
    """Bytes a step, as the counters at the steps tell it where they do."""
    until: int | None = None
    """The step from which on it did not rise any more; None where it rose to the last look, or not at all."""
    to_end: bool = False
    """It was counted to the end of the script's main code, too few steps having been seen."""
    is_counted: bool = True
    """False where nothing counts, and only storages and arrays are known."""
    lines: tuple[Line, ...] = ()
    among: int = 1
    """Ranks of which it is the one that grew most."""

    @property
    def steps(self) -> int:
        """Steps over which it grew, at least one."""
        return max(self.to_step - self.from_step, 1)


NO_GROWTH = 4096
"""Bytes a step, chosen, below which nothing is said to have grown: what any process moves by."""
Ledger = Sequence[LedgerInterval]


def totals(intervals: Ledger) -> tuple[Line, ...]:
    """The lines over all intervals, largest first; lines that did not move are left out."""
    return merged_lines(line for interval in intervals for line in interval.lines)


def merged_lines(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Lines of one name as one, largest first; those without a byte are left out."""
    sizes: Counter[tuple[str, ...]] = Counter()
    first: dict[tuple[str, ...], Line] = {}
    for line in lines:
        sizes[line.name] += line.bytes
        first.setdefault(line.name, line)
    found = (replace(first[name], bytes=size) for name, size in sizes.items() if size)
    return tuple(sorted(found, key=lambda line: (-line.bytes, line.name)))


def by_kind(lines: Iterable[Line]) -> dict[LineKind, int]:
    """Bytes of each kind of line, 0 where there are none."""
    sizes = dict.fromkeys(LineKind, 0)
    for line in lines:
        sizes[line.kind] += line.bytes
    return sizes


_REST = 0.05
"""Share of a growth below which what comes after it is none; chosen."""


def _until(same: Ledger, size: int) -> int | None:
    """The step of the look after which the growth stopped."""
    rises = [interval.grown > _REST * size for interval in same]
    if size <= 0 or rises[-1] or not any(rises):
        return None
    return max(interval.to_step for interval, rise in zip(same, rises, strict=True) if rise)


def grown_of(rank: int, intervals: Ledger) -> Grown | None:
    """The growth over all intervals on the last kind of device; None where there are none."""
    same = [interval for interval in intervals if interval.counted_on == intervals[-1].counted_on]
    if not same:
        return None
    size, begin, end = sum(interval.grown for interval in same), same[0].from_step, same[-1].to_step
    return Grown(
        rank=rank,
        bytes=size,
        from_step=begin,
        to_step=end,
        looks=len(same) + 1,
        per_step=size / max(end - begin, 1),
        until=_until(same, size),
        is_counted=all(interval.counted_bytes is not None for interval in same),
        lines=totals(same),
    )


class WorkerLineKind(StrEnum):
    """What the memory is that workers have for themselves."""

    COPIES = "copies"
    """Pages with the parent's Python objects of one container, copied as they were read."""
    OTHER_COPIES = "other_copies"
    """Other pages of the parent's: reading, and each full collection, writes to them."""
    OWN = "allocated"
    """What they have allocated since they were first read."""
    MAPPED = "mapped"
    """Files, and shared memory that no other process has."""
    BEGAN = "initial"
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


class Reason(StrEnum):
    """What decides a verdict."""

    LEAKS = "leaks"
    LEFT_BEHIND = "left behind"
    """A block of code left leaks."""
    NOTHING_RECORDED = "nothing recorded"
    SUPPRESSED = "suppressed"
    """All leaks that were found are known already."""
    CLEAN_BLOCK = "clean block"
    WITHIN_ALLOWANCE = "within allowance"
    """A block can have left no more than it is allowed to, and no look says what it was."""
    NO_STEP = "no step"
    FUNCTION_SILENT = "function silent"
    """The function of --step-function never returned."""
    FUNCTION_MISSING = "function missing"
    """The script neither defined nor imported it."""
    SPAWNED = "spawned"
    """No step was seen in the script's own process, and it started others."""
    RECORDING_ENDED = "recording ended"
    """A rank's recording ended before its script did."""
    KILLED = "killed"
    """A rank was killed before growth could be judged."""
    HUNG = "hung"
    DAMAGED = "damaged"
    """Files that a leak could have been seen in are damaged."""
    HIDDEN = "hidden"
    """What grew may be held by what torch does not show."""
    TOO_FEW_STEPS = "too few steps"
    TOO_FEW_LOOKS = "too few looks"
    """Too few looks saw something grow."""
    NO_LOOKS = "no looks"
    """There were steps enough, and nothing was looked at after any of them."""
    UNBALANCED = "unbalanced"
    """Growth that nothing explains, and of which it cannot be told whether it goes on."""
    NEW_SHAPES = "new shapes"
    """The same, while shapes were new at each look: it may be kernels that are kept for each."""
    NOTHING_GREW = "nothing grew"
    LITTLE_GREW = "little grew"
    """Nothing by enough for a leak."""
    FILLING = "filling"
    """What grows is emptied by a line of the source that has not taken effect yet."""
    BALANCED = "balanced"
    """Every byte of growth stands in a line that is no leak."""


class UnjudgedReason(StrEnum):
    """What keeps a rule from being applied."""

    TOO_FEW_LOOKS = "too few looks"
    NO_STEP = "no step"
    """No step was seen, so the looks are too few."""
    RAISED = "raised"
    """A rule of another package raised."""
    NOT_LOADED = "not loaded"
    """A rule of another package could not be loaded."""
    NO_SOURCE = "no source"
    """Reading the kept source raised: the finding has neither the line that adds to it nor an edit."""


@dataclass(frozen=True, kw_only=True)
class WhyUnjudged:
    """The reason, and what its sentence needs."""

    reason: UnjudgedReason
    looks: int = 0
    """Looks that there were after warm-up."""
    needed: int = 0
    """Looks that growth needs."""
    error: str = ""
    """What was raised: `LookupError: no such thing`."""


class HopReason(StrEnum):
    """Why an object on a trace is alive, or should not be."""

    FUNCTION_RUNS = "function runs"
    MODULE = "module"
    THREAD_RUNS = "thread runs"
    NATIVE = "native"
    """A running call or native code holds it."""
    INTERPRETER = "interpreter"
    ABOVE_CUT = "above cut"
    """A root leads to it, above the reference to cut."""
    ABOVE_LIBRARY = "above library"
    """A root leads to it, above what a library keeps."""
    ONLY_CUT = "only cut"
    """Only the reference to cut keeps it."""
    ONLY_CUTS = "only cuts"
    """Only the references to cut together keep it."""
    MORE_HOLDERS = "more holders"
    """More holds it than one cut lets go of."""
    CYCLE_ITSELF = "cycle itself"
    """It is on a cycle that no root leads to."""
    HELD_BY_CYCLE = "held by cycle"
    STILL_NEEDED = "still needed"
    NOT_USED_AGAIN = "not used again"
    """It is not used again before it is released."""
    KEPT_BY_LIBRARY = "kept by library"
    LEFT_OPEN = "left open"
    """It is a context that was entered and not left."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """The reason, and what its sentence needs."""

    reason: Reason
    count: int = 0
    """Leaks, known ones too, or where there are none notes; of a run that was too short the steps seen, of a rank that
    was killed or hung the looks.
    """
    bytes: int = 0
    """What the leaks hold; of a block without any, what libraries left."""
    bytes_per_step: float = 0.0
    bytes_at_end: int = 0
    """What the leaks hold at the end of the run, extrapolated by the counters; 0 where the last look was the end."""
    full_at_step: int = 0
    """By which memory is full if the leaks go on; 0 where that is not known or far off."""
    rank: int = 0
    """The rank that was killed or hung, whose recording ended, or whose files are damaged."""
    ended: Ended | None = None
    """How that rank ended."""
    is_only_rank: bool = False
    """The run has no other."""
    steps: int = 0
    """Steps that would be enough."""
    detail: str = ""
    """What grew, as the user would write it; the function whose returns should have ended steps; what ended the
    recording; damaged files; the files that say what is known.
    """
    near: tuple[str, ...] = ()
    """Functions of the script whose names are like that of one that is not there."""
    notes: int = 0
    """Notes beside known leaks."""
    emptied: EmptiedLater | None = None
    """What empties `detail`, where that has not taken effect yet."""
    processes: tuple[StartedProcess, ...] = ()
    """Those that the script started, where no step was seen."""
    unjudged: WhyUnjudged | str = ""
    """What there was too little of to judge growth."""
    grown: Grown | None = None
    """What was counted on the rank that grew most; None where nothing was."""
    garbage: int = 0
    """Bytes that waited for gc at the last look, all ranks."""
    horizon: int = 0
    """Steps over which growth was projected; 0 where the user gave a threshold of their own."""
    freed_late: int = 0
    """Bytes a step of the leaks that are made each step, hold as much at each look, and are freed late."""


@dataclass(frozen=True)
class Hop:
    """One object on the trace, and the reference by which it holds the next."""

    object: str
    type: str
    kind: ObjectKind
    where: str
    status: HopStatus
    reference: str
    """Reference to the next object; `[i]`, not `[17]`, where it is one of many like it; "" on the last."""
    reason: HopReason | str = ""
    """Why the status is what it is; `report/wording` makes words of it, a `str` is a caller's own."""
    frees_bytes: int | None = None
    """What would be freed if this one reference were cut."""
    index: int | None = None
    """The object's index in the heap graph that the finding was judged on; not written to disk."""
    references: tuple[int, ...] = ()
    """Indexes of `reference` there, more than one where a run of grad nodes is told as one hop; not written to disk."""
    name: str = ""
    """Qualified name of the function, class, module or type, as the heap graph has it; not written to disk."""
    base: str = ""
    """The class of a package's that a type of the user's derives from; not written to disk."""
    others: int = 0
    """Items of a container that lead to no memory: numbers, None, texts; not written to disk."""


@dataclass(frozen=True)
class CutReference:
    """One reference to cut."""

    name: str
    """Its own name: `.losses`, `[i]` where it is one of many items."""
    where: str = ""
    written: str = ""
    """As the user would write it, from its root on: `self.losses in Trainer.fit()`."""
    indexes: tuple[int, ...] = ()
    """In the heap that the finding was judged on: the reference, then the same one in its other instances. Another
    finding's are compared by `Finding.cut_in` alone.
    """
    trace: int | None = None
    """Position of the hop that holds by it; None where the trace does not lead over it."""
    added_at: tuple[str, ...] = ()
    """Lines of the kept source that put something there: `train.py:31`; () where none were found."""
    path: tuple[Hop, ...] = ()
    """The reference path over it down to the memory, where the trace is another one; () elsewhere."""


@dataclass(frozen=True)
class Suggestion:
    """The smallest edit that would mend a leak, of one place or of several; advice, nobody has tried it."""

    where: str
    """Its first line: `train.py:31`."""
    before: str
    """Its lines as they stand, without the indentation of the first."""
    after: str
    """As they would be; "" where the line is to go."""
    also: tuple[Suggestion, ...] = ()
    """Edits of further places, without which this one does not mend it."""

    @property
    def places(self) -> tuple[Suggestion, ...]:
        """The edit of each place, in the order in which they are told."""
        return (replace(self, also=()), *self.also)


@dataclass(frozen=True)
class See:
    """A function of leakscope's own backward that does without a fault."""

    function: str
    """Of the public API: `leakscope.backward.output_edges`."""
    lines: tuple[str, ...]
    """What to write, three lines at most; `outputs`, `output_grads`, `inputs` and `weights` are the stage's own."""
    does: str
    """What it does instead, as what follows its name in a sentence."""

    @property
    def name(self) -> str:
        """The function's own: `output_edges`."""
        return self.function.rpartition(".")[2]


@dataclass(frozen=True)
class CycleReference:
    """One reference of a cycle, with the labels and the indexes of the objects at its ends."""

    holder: str
    name: str
    held: str
    holder_index: int
    index: int
    held_index: int


@dataclass(frozen=True)
class Cut:
    """The references whose removal frees the storage: one, or the few that hold the same memory."""

    references: tuple[CutReference, ...]
    frees_bytes: int
    proved_bytes: int | None = None
    """What went free when a forked copy of the process made the cut; None where it was not tried."""
    unproved: OnlyTensorsFreed | str = ""
    """What the try leaves open; a `str` is what capture says, why it was not tried."""
    after_gc: bool = False
    """What was held are cycles: they go free at the next full collection after the cut, not at once."""
    is_told: bool = True
    """False where more may go free than the graph says, which does not have all that C++ holds."""

    @property
    def told_bytes(self) -> int | None:
        """What is told: the proved figure where there is one; None where it is not known."""
        known = self.frees_bytes if self.is_told else None
        return known if self.proved_bytes is None else self.proved_bytes

    @property
    def reference(self) -> str:
        """Name of the first reference."""
        return self.references[0].name

    @property
    def where(self) -> str:
        """Line of the first reference."""
        return self.references[0].where

    @property
    def written(self) -> str:
        """The first reference as the user would write it."""
        return self.references[0].written

    @property
    def is_of_library(self) -> bool:
        """All references to cut are a library's own: nothing for the user to cut."""
        return all(is_library_line(reference.where) for reference in self.references)

    @property
    def also(self) -> tuple[str, ...]:
        """The further references, as the user would write them."""
        return tuple(reference.written for reference in self.references[1:])


@dataclass(frozen=True)
class Sighting:
    """One look at which the leak was there."""

    rank: int
    step: int
    bytes: int


class HeapId(NamedTuple):
    """One heap graph among those of a run: indexes of two are never compared."""

    rank: int
    look: int
    """The rising number of the look among the judged ones of its rank."""


@dataclass(frozen=True, repr=False)
class Finding:
    """One distinct leak, or a note, with its reference path and its cut.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/kept-outputs"))
    >>> finding = leakscope.judge(run).findings[0]
    >>> finding.is_leak, finding.retained_bytes > 0, finding.cut.references[0].written == finding.cut.written
    (True, True, True)
    """

    rule: str
    """A `RuleName`, or the name of another package's rule."""
    facts: Facts
    """What its rule knows of it, with its title and its advice."""
    fingerprint: str
    """Eight hexadecimal digits made of generic references, type names and qualified names from the root."""
    severity: Severity
    freed_by: FreedBy
    retained_bytes: int
    """Bytes at the last sighting, all ranks."""
    bytes_per_step: float
    """Growth a step over the looks, summed over the ranks; 0.0 where it does not grow."""
    trace: tuple[Hop, ...]
    """From the root down to the storage; for a cycle, once around."""
    cut: Cut | None
    least_per_step: int = 0
    """Bytes a step from which on growth of its kind is a leak."""
    origin: Origin = Origin.APPLICATION
    library: str = ""
    """The package that closes or keeps it, `torch`; "" for the application's own, and where it is not known."""
    collections: int | None = None
    """Full collections that free it, where gc does."""
    made_at: tuple[str, ...] = ()
    sightings: tuple[Sighting, ...] = ()
    see: See | None = None
    """What of leakscope's own backward does without it; None but for a pipeline's."""
    cycle: tuple[CycleReference, ...] = ()
    """The smallest cycle, for drawing; the closing reference last."""
    count: int = 0
    """Storages held at the last sighting."""
    before_bytes: int = 0
    """Bytes that its holder had before the calls of `check`: in no other figure of its own, and `count` is 0 then."""
    host_bytes: int = 0
    """Those of the bytes that are in host memory, in a run that uses an accelerator."""
    counted_bytes: int = 0
    """Those of the bytes that the allocator counted beside the storages, of grad nodes."""
    subject: str = ""
    """The reference to cut or, where no cut frees anything, what holds it, as the user would write it."""
    noun: str = "tensor"
    """What it keeps: `numpy array` where that is no tensor's memory."""
    settled_by: Bounded | CameToRest | EmptiedLater | FollowsInput | HeldByCall | None = None
    """Why as it grew at the looks it does not go on for ever."""
    too_large: TooLarge | None = None
    """A bound that it has and that is no reason to let it grow."""
    keeps_graphs: bool = False
    """The growth that the allocator counts beside the tensors is of the graphs that made them."""
    comm_buffers: CommBuffers | None = None
    """Sent and received buffers among what a holder of another kind keeps."""
    beside: tuple[Beside, ...] = ()
    """Memory of other kinds that the same cut frees; not in the figures."""
    upstream: Upstream | None = None
    """The issue under which the library's developers know it, where its facts do not say so."""
    suggestion: Suggestion | None = None
    """The smallest edit that would mend it, where one was found in the kept source."""
    suppressed_by: Suppression | None = None
    """What sets it apart; None where it is shown, and may decide the verdict."""
    storages: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Rank to the storages' indexes in that rank's last judged look; not written to disk."""
    cut_in: frozenset[tuple[HeapId, int]] = frozenset()
    """Every reference to cut, on all ranks and in all instances, with the heap that its index is of; not written to
    disk.
    """

    def __repr__(self) -> str:
        return f"<Finding {self.rule} [{self.fingerprint}], {self.severity}: {bytes_text(self.retained_bytes)}>"

    @property
    def cut_position(self) -> int | None:
        """Position on the trace of the hop whose reference is the one to cut; None where the trace does not show it."""
        return self.cut.references[0].trace if self.cut is not None else None

    @property
    def is_leak(self) -> bool:
        """Whether it decides the verdict, and with it the exit status and what every format calls a leak."""
        return self.severity == Severity.LEAK

    @property
    def settled(self) -> bool:
        """It has a bound or went no further: as it grew at the looks it does not go on for ever."""
        return self.settled_by is not None or self.facts.is_bounded

    @property
    def freed_late(self) -> bool:
        """As much waits for gc at each look, though more is made each step: collections come and free the older."""
        if self.freed_by != FreedBy.GC or self.bytes_per_step <= 0:
            return False
        seen = [sorted((s for s in self.sightings if s.rank == rank), key=lambda s: s.step) for rank in self.ranks]
        rose = sum(of_rank[-1].bytes - of_rank[0].bytes for of_rank in seen)
        steps = sum(of_rank[-1].step - of_rank[0].step for of_rank in seen)
        return rose < self.bytes_per_step / max(len(self.ranks), 1) * steps / 2

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that saw it."""
        return tuple(sorted({s.rank for s in self.sightings}))

    @property
    def first_step(self) -> int | None:
        """Step of the first sighting."""
        return min((s.step for s in self.sightings), default=None)

    @property
    def last_step(self) -> int | None:
        """Step of the last sighting."""
        return max((s.step for s in self.sightings), default=None)


@dataclass(frozen=True)
class Unjudged:
    """A rule that could not be applied, and why."""

    rule: str
    rank: int
    why: WhyUnjudged | str
    """The reason, which `report/wording` makes a clause of; a `str` is what capture recorded."""


@dataclass(frozen=True)
class RankSummary:
    """Figures of one rank; None where nobody measured them."""

    verdict: Verdict | None = None
    """On this rank by itself; None before the run is judged."""
    peak_bytes: int | None = None
    avoidable_peak_bytes: int | None = None
    freed_by_gc_bytes: int | None = None
    gc_seconds: float | None = None
    explained_bytes: int = 0
    counted_bytes: int | None = None
    categories: Mapping[str, int] = field(default_factory=dict)
    """Bytes at the last look by what they are: parameter, gradient, optimizer state, leaked, ..."""
    categories_by_step: tuple[tuple[int, Mapping[str, int]], ...] = ()


@dataclass(frozen=True, repr=False)
class Findings:
    """The verdict of a run, its findings, and the growth breakdown of each rank.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/kept-outputs"))
    >>> findings = leakscope.judge(run)
    >>> findings.verdict.value, len(findings.leaks) > 0, sorted(findings.ranks)
    ('leaks', True, [0, 1])
    """

    verdict: Verdict
    why: Why | str
    """The reason, which `report/wording` makes a sentence of; a `str` is a caller's own words."""
    exit_status: int
    findings: tuple[Finding, ...] = ()
    returned: Returned = Returned.OWN
    """Whether the command that prints this ends with `exit_status`."""
    fail_on_inconclusive: bool = False
    """A run that could not be judged is a failure (`--fail-on-inconclusive`)."""
    avoidable_over: int | None = None
    """Avoidable bytes of all ranks, where they are more than the run allows (`--fail-on-avoidable`)."""
    suppressed: tuple[Finding, ...] = ()
    """Known already, as each one's `suppressed_by` says: they decide nothing."""
    unused: tuple[Suppression, ...] = ()
    """Suppressions that name nothing that was found, of a run that could be judged."""
    expired: tuple[Suppression, ...] = ()
    """Suppressions whose last day was before the run."""
    unjudged: tuple[Unjudged, ...] = ()
    ranks: Mapping[int, RankSummary] = field(default_factory=dict)
    ledgers: Mapping[int, tuple[LedgerInterval, ...]] = field(default_factory=dict)
    """Rank to the growth between its judged looks, line by line."""
    listed: tuple[AliveAtEnd, ...] = ()
    """What was alive after the script's main code had returned: shown, never judged."""
    out_of_memory: tuple[RunFacts, ...] = ()
    """Where an allocation failed, and what held the memory then; a report opens with it."""
    gc_advice: tuple[RunFacts, ...] = ()
    """What collecting freed and cost, and whether less of it would do."""
    drag: tuple[RunFacts, ...] = ()
    """How long the memory of a watched step lay unused, and how much of its peak."""
    also_grows: tuple[AlsoGrows, ...] = ()
    """What grows beside tensor memory: descriptors, shared memory, compiled code; it decides no verdict."""

    loaders: Mapping[int, tuple[LoaderMemory, ...]] = field(default_factory=dict)
    """Rank to what the workers of its data loaders took: memory of other processes, in no other figure."""

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """What decides the verdict, whoever's code closes or keeps it; empty unless the verdict is `leaks`."""
        return tuple(finding for finding in self.findings if finding.is_leak)

    @property
    def failed(self) -> bool:
        """Whether what was found is a failure: the one predicate behind the exit status and every format.

        Leaks are, and so is what `--fail-on-avoidable` and `--fail-on-inconclusive` make one. How the ranks ended is
        not part of it.
        """
        return bool(self.leaks) or self.avoidable_over is not None or self.unjudged_fails

    @property
    def unjudged_fails(self) -> bool:
        """Whether it is a failure because it could not be judged."""
        return self.fail_on_inconclusive and self.verdict == Verdict.INCONCLUSIVE

    def __repr__(self) -> str:
        leaks = sum(finding.retained_bytes for finding in self.leaks)
        return f"<{type(self).__name__}: {self.verdict}{f', {bytes_text(leaks)} in leaks' if leaks else ''}>"
