"""The findings of a run as frozen data: `Finding`, `Cut`, `Hop`, the growth breakdown and the reasons of a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from leakscope.findings.counters import AlsoGrows
from leakscope.findings.facts import (
    AliveAtEnd,
    AlsoFreed,
    Bounded,
    CommBuffers,
    EmptiedLater,
    Facts,
    FollowsInput,
    FreedBy,
    HeldByCall,
    HopStatus,
    LibraryIssue,
    OnlyTensorsFreed,
    Origin,
    Plateaued,
    RunFacts,
    Severity,
    TooLarge,
)
from leakscope.findings.workers import LoaderMemory
from leakscope.graph.model import ObjectKind
from leakscope.graph.ownership import is_library_line
from leakscope.run.model import Ended
from leakscope.run.rows import StartedProcess
from leakscope.run.suppression import Suppression
from leakscope.units import bytes_text
from leakscope.verdict import Returned, Verdict


class LineKind(StrEnum):
    """The kind of a line of the growth breakdown."""

    LEAKS = "leaks"
    LIBRARY = "library"
    """Closed or held by a library, a leak or not."""
    BOUND = "bounded"
    GARBAGE = "awaiting_gc"
    """In cycles, and not a leak by its growth."""
    SLOW = "below_threshold"
    """Of something that grows too little, or at too few snapshots, for a verdict."""
    RESTED = "plateaued"
    """Plateaued or transient."""
    FOLLOWS = "follows_input"
    """Created anew in each step, with a size that follows the input."""
    APART = "suppressed"
    """Of findings that are suppressed or in the baseline."""
    OBJECTS = "python_objects"
    """Numpy arrays, bytes and other non-tensor objects."""
    GRAD_NODES = "autograd_nodes"
    """C++ memory of autograd graphs, by their number of nodes."""
    BLOCKS = "native_blocks"
    """Of an accelerator's allocator: blocks without a storage, and the excess of blocks over their storages."""
    UNATTRIBUTED = "unattributed"
    """The rest of the counted bytes, positive or negative."""


class RestedKind(StrEnum):
    """The purpose of memory that plateaued."""

    OPTIMIZER = "optimizer state"
    PARAMETER = "parameters and gradients"
    OTHER = "other tensors"


@dataclass(frozen=True)
class Line:
    """One line of the growth breakdown."""

    kind: LineKind
    bytes: int
    """Growth, negative if it shrank."""
    fingerprint: str = ""
    """Fingerprint of its finding."""
    holder: str = ""
    """Holder, as written in code."""
    rested: RestedKind | None = None

    @property
    def name(self) -> tuple[str, ...]:
        """What identifies the line over intervals."""
        return self.kind, self.fingerprint, self.rested or ""


@dataclass(frozen=True)
class LedgerInterval:
    """Growth between two consecutive snapshots of one rank, on one kind of device."""

    from_step: int
    to_step: int
    counted_bytes: int | None
    """Counted growth, the sum of the lines; None if nothing counts."""
    lines: tuple[Line, ...]
    counted_on: str = "cpu"

    @property
    def grown(self) -> int:
        """Counted growth or, if nothing counts, seen growth."""
        return sum(line.bytes for line in self.lines) if self.counted_bytes is None else self.counted_bytes


@dataclass(frozen=True)
class RankGrowth:
    """The growth of one rank's memory, and where it went."""

    rank: int
    bytes: int
    """Growth, negative if it shrank."""
    from_step: int
    to_step: int
    snapshots: int
    """Number of snapshots; 0 for the counters at the end of each step and of the main code."""
    per_step: float
    """Bytes per step, from the counters of the steps if available."""
    until: int | None = None
    """The step after which it did not rise; None if it rose up to the last snapshot, or not at all."""
    to_end: bool = False
    """Whether it was counted up to the end of the main code, because of too few steps."""
    is_counted: bool = True
    """False if nothing counts, and only storages and arrays are known."""
    lines: tuple[Line, ...] = ()
    among: int = 1
    """Number of ranks among which it grew most."""

    @property
    def steps(self) -> int:
        """Steps over which it grew, at least one."""
        return max(self.to_step - self.from_step, 1)


NO_GROWTH = 4096
"""Bytes per step below which growth is not reported: the variation of any process. Heuristic."""
Ledger = Sequence[LedgerInterval]


def totals(intervals: Ledger) -> tuple[Line, ...]:
    """The lines over all intervals, largest first, without unchanged ones."""
    return merged_lines(line for interval in intervals for line in interval.lines)


def merged_lines(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Lines of one name joined, largest first, without empty ones."""
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


_CONSTANT_SHARE = 0.05
"""Share of the growth below which later growth counts as none. Heuristic."""


def _until(same: Ledger, size: int) -> int | None:
    """The step of the snapshot after which growth stopped."""
    rises = [interval.grown > _CONSTANT_SHARE * size for interval in same]
    if size <= 0 or rises[-1] or not any(rises):
        return None
    return max(interval.to_step for interval, rise in zip(same, rises, strict=True) if rise)


def grown_of(rank: int, intervals: Ledger) -> RankGrowth | None:
    """The growth over all intervals on the last kind of device; None without intervals."""
    same = [interval for interval in intervals if interval.counted_on == intervals[-1].counted_on]
    if not same:
        return None
    size, begin, end = sum(interval.grown for interval in same), same[0].from_step, same[-1].to_step
    return RankGrowth(
        rank=rank,
        bytes=size,
        from_step=begin,
        to_step=end,
        snapshots=len(same) + 1,
        per_step=size / max(end - begin, 1),
        until=_until(same, size),
        is_counted=all(interval.counted_bytes is not None for interval in same),
        lines=totals(same),
    )


class Reason(StrEnum):
    """What decides a verdict."""

    LEAKS = "leaks"
    LEFT_BEHIND = "left behind"
    """A block of code left leaks behind."""
    NOTHING_RECORDED = "nothing recorded"
    SUPPRESSED = "suppressed"
    """All leaks that were found are suppressed or in the baseline."""
    CLEAN_BLOCK = "clean block"
    WITHIN_ALLOWANCE = "within allowance"
    """A block can have left no more than it is allowed to; no snapshot shows what it was."""
    NO_STEP = "no step"
    FUNCTION_SILENT = "function silent"
    """The step function never returned."""
    FUNCTION_MISSING = "function missing"
    """The script neither defined nor imported the step function."""
    SPAWNED = "spawned"
    """No step was seen in the script's own process, which started others."""
    RECORDING_ENDED = "recording ended"
    """A rank's recording ended before its script."""
    KILLED = "killed"
    """A rank was killed before growth could be judged."""
    HUNG = "hung"
    DAMAGED = "damaged"
    """Files that could show a leak are damaged."""
    HIDDEN = "hidden"
    """Growth may be held by references that torch does not show."""
    TOO_FEW_STEPS = "too few steps"
    TOO_FEW_SNAPSHOTS = "too few looks"
    """Too few snapshots show something growing."""
    NO_SNAPSHOTS = "no looks"
    """There were enough steps, but no heap snapshot after any of them."""
    UNBALANCED = "unbalanced"
    """Unexplained growth that may or may not continue."""
    NEW_SHAPES = "new shapes"
    """Unexplained growth with new shapes at each snapshot: it may be cached kernels."""
    NOTHING_GREW = "nothing grew"
    LITTLE_GREW = "little grew"
    """Nothing grew enough for a leak."""
    FILLING = "filling"
    """A line of the source empties what grows, and has not taken effect yet."""
    BALANCED = "balanced"
    """Every byte of growth is attributed to something other than a leak."""


class UnjudgedReason(StrEnum):
    """Why a rule could not be applied."""

    TOO_FEW_SNAPSHOTS = "too few looks"
    NO_STEP = "no step"
    """No step was seen, so there are too few snapshots."""
    RAISED = "raised"
    """A rule of another package raised."""
    NOT_LOADED = "not loaded"
    """A rule of another package could not be loaded."""
    NO_SOURCE = "no source"
    """Reading the kept source failed: the finding has neither the line that adds to it nor an edit."""


@dataclass(frozen=True, kw_only=True)
class WhyUnjudged:
    """The reason, with the data for its sentence."""

    reason: UnjudgedReason
    snapshots: int = 0
    """Number of snapshots after warm-up."""
    needed: int = 0
    """Number of snapshots needed to judge growth."""
    error: str = ""
    """The exception: `LookupError: no such thing`."""


class HopReason(StrEnum):
    """Why an object on a trace is or should not be alive."""

    FUNCTION_RUNS = "function runs"
    MODULE = "module"
    THREAD_RUNS = "thread runs"
    NATIVE = "native"
    """A running call or native code holds it."""
    INTERPRETER = "interpreter"
    ABOVE_CUT = "above cut"
    """Reachable from a root, above the reference to cut."""
    ABOVE_LIBRARY = "above library"
    """Reachable from a root, above what a library keeps."""
    ONLY_CUT = "only cut"
    """Retained only by the reference to cut."""
    ONLY_CUTS = "only cuts"
    """Retained only by the references to cut together."""
    MORE_HOLDERS = "more holders"
    """Retained by more than one cut removes."""
    CYCLE_ITSELF = "cycle itself"
    """On a cycle that is not reachable from a root."""
    HELD_BY_CYCLE = "held by cycle"
    STILL_NEEDED = "still needed"
    NOT_USED_AGAIN = "not used again"
    """Not used again before it is released."""
    KEPT_BY_LIBRARY = "kept by library"
    LEFT_OPEN = "left open"
    """A context that was entered and not left."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """The reason, with the data for its sentence."""

    reason: Reason
    count: int = 0
    """Number of leaks including suppressed ones, or else of notes; steps seen in a run that was too short; snapshots of
    a rank that was killed or hung.
    """
    bytes: int = 0
    """Bytes held by the leaks; for a block without leaks, bytes left by libraries."""
    bytes_per_step: float = 0.0
    bytes_at_end: int = 0
    """Bytes held by the leaks at the end of the run, extrapolated by the counters; 0 if the last snapshot was at the
    end.
    """
    full_at_step: int = 0
    """Step at which memory is full if the leaks continue; 0 if unknown or far off."""
    rank: int = 0
    """The rank that was killed or hung, whose recording ended, or whose files are damaged."""
    ended: Ended | None = None
    """How that rank ended."""
    is_only_rank: bool = False
    """Whether the run has no other rank."""
    steps: int = 0
    """Number of steps that would be enough."""
    detail: str = ""
    """What grew, as written in code; the step function; what ended the recording; damaged files; files with baseline
    and suppressions.
    """
    near: tuple[str, ...] = ()
    """Functions of the script with names similar to the missing one."""
    notes: int = 0
    """Number of notes beside known leaks."""
    emptied: EmptiedLater | None = None
    """The line that empties `detail` and has not taken effect yet."""
    processes: tuple[StartedProcess, ...] = ()
    """Processes that the script started, if no step was seen."""
    unjudged: WhyUnjudged | str = ""
    """What was too little to judge growth."""
    grown: RankGrowth | None = None
    """The counted growth of the rank that grew most; None if nothing was counted."""
    garbage: int = 0
    """Bytes awaiting gc at the last snapshot, over all ranks."""
    horizon: int = 0
    """Steps over which growth was projected; 0 if the user gave a threshold."""
    freed_late: int = 0
    """Bytes per step of leaks that are created each step, hold equally much at each snapshot, and are freed late."""


@dataclass(frozen=True)
class Hop:
    """One object on the trace, and its reference to the next."""

    object: str
    type: str
    kind: ObjectKind
    where: str
    status: HopStatus
    reference: str
    """Reference to the next object; `[i]`, not `[17]`, for one of many alike; "" on the last."""
    reason: HopReason | str = ""
    """Why it has this status, written as a sentence by `report/finding_text.py`; a `str` is a caller's own."""
    frees_bytes: int | None = None
    """Bytes freed by cutting this reference alone."""
    index: int | None = None
    """Index of the object in the judged heap graph; not written to disk."""
    references: tuple[int, ...] = ()
    """Indexes of `reference`, several if a run of grad nodes is one hop; not written to disk."""
    name: str = ""
    """Qualified name of the function, class, module or type; not written to disk."""
    base: str = ""
    """The package's class from which a type of the user derives; not written to disk."""
    others: int = 0
    """Items of a container that lead to no memory: numbers, None, strings; not written to disk."""


@dataclass(frozen=True)
class CutReference:
    """One reference to cut."""

    name: str
    """Its name: `.losses`, `[i]` for one of many items."""
    where: str = ""
    written: str = ""
    """As written in code, from its root: `self.losses in Trainer.fit()`."""
    indexes: tuple[int, ...] = ()
    """Indexes in the judged heap: of the reference, then of its other instances. Use `Finding.cut_in` to compare
    findings.
    """
    trace: int | None = None
    """Position of the hop with this reference; None if it is not on the trace."""
    added_at: tuple[str, ...] = ()
    """Lines of the kept source that add to it: `train.py:31`; () if none were found."""
    path: tuple[Hop, ...] = ()
    """The reference path through it to the memory, if it is not the trace; else ()."""
    key: tuple[str, ...] = ()
    """Its `ReferenceKey`, by which two cuts are the same; () if unknown; not written to disk."""


@dataclass(frozen=True)
class Suggestion:
    """The smallest edit that fixes a leak, in one or several places; unverified."""

    where: str
    """Its first line: `train.py:31`."""
    before: str
    """Its current lines, without the indentation of the first."""
    after: str
    """The new lines; "" if the line is removed."""
    also: tuple[Suggestion, ...] = ()
    """Edits of further places that the fix requires."""

    @property
    def places(self) -> tuple[Suggestion, ...]:
        """The edit of each place, in reporting order."""
        return (replace(self, also=()), *self.also)


@dataclass(frozen=True)
class BackwardHint:
    """A function of leakscope's own backward that avoids a fault."""

    function: str
    """Of the public API: `leakscope.backward.output_edges`."""
    lines: tuple[str, ...]
    """Code to write, at most three lines; `outputs`, `output_grads`, `inputs` and `weights` are the stage's."""
    does: str
    """What it does instead, to follow its name in a sentence."""

    @property
    def name(self) -> str:
        """The function's name: `output_edges`."""
        return self.function.rpartition(".")[2]


@dataclass(frozen=True)
class CycleReference:
    """One reference of a cycle, with labels and indexes of its ends."""

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
    """Bytes freed when a forked copy of the process made the cut; None if it was not tried."""
    unproved: OnlyTensorsFreed | str = ""
    """Why the cut was not tried or is not conclusive; a `str` comes from the recorder."""
    after_gc: bool = False
    """Whether what was held are cycles, freed by the next full collection after the cut."""
    is_exact: bool = True
    """False if more may be freed than the graph shows, which lacks C++ references."""

    @property
    def reported_bytes(self) -> int | None:
        """The reported bytes: the measured ones if available; None if unknown."""
        known = self.frees_bytes if self.is_exact else None
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
        """The first reference as written in code."""
        return self.references[0].written

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys of all references: cuts with equal ones are the same."""
        return tuple(reference.key for reference in self.references)

    @property
    def is_of_library(self) -> bool:
        """Whether all references to cut belong to a library: nothing for the user to cut."""
        return all(is_library_line(reference.where) for reference in self.references)

    @property
    def also(self) -> tuple[str, ...]:
        """The further references, as written in code."""
        return tuple(reference.written for reference in self.references[1:])


@dataclass(frozen=True)
class Sighting:
    """One snapshot that shows the leak."""

    rank: int
    step: int
    bytes: int


class HeapId(NamedTuple):
    """Identifies a heap graph of a run: indexes of different ones are never compared."""

    rank: int
    snapshot: int
    """Number of the snapshot among the judged ones of its rank."""


SettledBy = Bounded | Plateaued | EmptiedLater | FollowsInput | HeldByCall
"""Why growth does not continue forever."""


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
    """The facts of its rule, with title and advice."""
    fingerprint: str
    """Eight hexadecimal digits from generic references, type names and qualified names along the path from the root."""
    severity: Severity
    freed_by: FreedBy
    retained_bytes: int
    """Bytes at the last sighting, over all ranks."""
    bytes_per_step: float
    """Growth in bytes per step over the snapshots, summed over the ranks; 0.0 if it does not grow."""
    trace: tuple[Hop, ...]
    """From the root down to the storage; for a cycle, once around."""
    cut: Cut | None
    least_per_step: int = 0
    """Bytes per step from which growth of its kind is a leak."""
    origin: Origin = Origin.APPLICATION
    library: str = ""
    """The package that closes or keeps it, `torch`; "" if it is the application's own or unknown."""
    collections: int | None = None
    """Number of full collections that free it, if gc does."""
    made_at: tuple[str, ...] = ()
    sightings: tuple[Sighting, ...] = ()
    see: BackwardHint | None = None
    """Function of leakscope's own backward that avoids it; None unless it is a pipeline's."""
    cycle: tuple[CycleReference, ...] = ()
    """The smallest cycle, for drawing; the closing reference last."""
    count: int = 0
    """Number of storages at the last sighting."""
    before_bytes: int = 0
    """Bytes that its holder had before the calls of `check`: in no other figure, and `count` is 0 then."""
    host_bytes: int = 0
    """The part of the bytes in host memory, in a run with an accelerator."""
    counted_bytes: int = 0
    """The part of the bytes that the allocator counted beside the storages, for grad nodes."""
    subject: str = ""
    """The reference to cut or, if no cut frees anything, the holder, as written in code."""
    noun: str = "tensor"
    """The kind of memory: `numpy array` for non-tensor memory."""
    settled_by: SettledBy | None = None
    """Why its growth does not continue forever."""
    too_large: TooLarge | None = None
    """A bound that does not justify its growth."""
    keeps_graphs: bool = False
    """Whether growth counted beside the tensors is due to the graphs that made them."""
    comm_buffers: CommBuffers | None = None
    """Sent and received buffers among the retained memory of another kind."""
    beside: tuple[AlsoFreed, ...] = ()
    """Memory of other kinds that the same cut frees; not in the figures."""
    upstream: LibraryIssue | None = None
    """The issue in the library's tracker, if its facts do not name it."""
    suggestion: Suggestion | None = None
    """The first candidate of `leakscope fix`, if one was found in the kept source; no report shows it."""
    suppressed_by: Suppression | None = None
    """The suppression that applies; None if it is reported and may affect the verdict."""
    storages: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Rank, mapped to the storages' indexes in its last judged snapshot; not written to disk."""
    cut_in: frozenset[tuple[HeapId, int]] = frozenset()
    """Every reference to cut, on all ranks and in all instances, with its heap; not written to disk."""

    def __repr__(self) -> str:
        return f"<Finding {self.rule} [{self.fingerprint}], {self.severity}: {bytes_text(self.retained_bytes)}>"

    @property
    def cut_position(self) -> int | None:
        """Position on the trace of the hop with the reference to cut; None if it is not on the trace."""
        return self.cut.references[0].trace if self.cut is not None else None

    @property
    def is_leak(self) -> bool:
        """Whether it affects the verdict, and with it the exit status and every format."""
        return self.severity == Severity.LEAK

    @property
    def settled(self) -> bool:
        """Whether its growth has a bound or stopped."""
        return self.settled_by is not None or self.facts.is_bounded

    @property
    def freed_late(self) -> bool:
        """Whether equally much awaits gc at each snapshot although more is created each step: collections free the
        older part.
        """
        if self.freed_by != FreedBy.GC or self.bytes_per_step <= 0:
            return False
        seen = [sorted((s for s in self.sightings if s.rank == rank), key=lambda s: s.step) for rank in self.ranks]
        rose = sum(of_rank[-1].bytes - of_rank[0].bytes for of_rank in seen)
        steps = sum(of_rank[-1].step - of_rank[0].step for of_rank in seen)
        return rose < self.bytes_per_step / max(len(self.ranks), 1) * steps / 2

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with a sighting."""
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
    """The reason, written as a sentence by `report/verdict_text.py`; a `str` comes from the recorder."""


@dataclass(frozen=True)
class RankSummary:
    """Figures of one rank; None if not measured."""

    verdict: Verdict | None = None
    """Verdict on this rank alone; None before the run is judged."""
    peak_bytes: int | None = None
    avoidable_peak_bytes: int | None = None
    freed_by_gc_bytes: int | None = None
    gc_seconds: float | None = None
    explained_bytes: int = 0
    counted_bytes: int | None = None
    categories: Mapping[str, int] = field(default_factory=dict)
    """Bytes at the last snapshot by purpose: parameter, gradient, optimizer state, leaked, ..."""
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
    """The reason, written as a sentence by `report/verdict_text.py`; a `str` is a caller's own."""
    exit_status: int
    findings: tuple[Finding, ...] = ()
    returned: Returned = Returned.OWN
    """Whether the command that prints this exits with `exit_status`."""
    fail_on_inconclusive: bool = False
    """Whether a run that could not be judged is a failure (`--fail-on-inconclusive`)."""
    avoidable_over: int | None = None
    """Avoidable bytes of all ranks, if more than allowed (`--fail-on-avoidable`)."""
    suppressed: tuple[Finding, ...] = ()
    """Known findings, according to their `suppressed_by`: they do not affect the verdict."""
    unused: tuple[Suppression, ...] = ()
    """Suppressions that match nothing, in a run that could be judged."""
    expired: tuple[Suppression, ...] = ()
    """Suppressions that had expired before the run."""
    unjudged: tuple[Unjudged, ...] = ()
    ranks: Mapping[int, RankSummary] = field(default_factory=dict)
    ledgers: Mapping[int, tuple[LedgerInterval, ...]] = field(default_factory=dict)
    """Rank, mapped to the growth between its judged snapshots, by line."""
    listed: tuple[AliveAtEnd, ...] = ()
    """What was alive after the script's main code had returned: shown, never judged."""
    out_of_memory: tuple[RunFacts, ...] = ()
    """Where an allocation failed and what held the memory; reported first."""
    gc_advice: tuple[RunFacts, ...] = ()
    """What collections freed and cost, and whether less would be enough."""
    drag: tuple[RunFacts, ...] = ()
    """Idle time of the memory of a watched step, and its share of the peak."""
    also_grows: tuple[AlsoGrows, ...] = ()
    """What grows beside tensor memory: descriptors, shared memory, compiled code; it does not affect the verdict."""

    loaders: Mapping[int, tuple[LoaderMemory, ...]] = field(default_factory=dict)
    """Rank, mapped to the memory of its DataLoader workers: other processes, in no other figure."""

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """Findings that decide the verdict, whoever's code causes them; empty unless the verdict is `leaks`."""
        return tuple(finding for finding in self.findings if finding.is_leak)

    @property
    def failed(self) -> bool:
        """Whether the findings are a failure: the one predicate behind the exit status and every format.

        Leaks are, and what `--fail-on-avoidable` and `--fail-on-inconclusive` add. How the ranks ended is not part of
        it.
        """
        return bool(self.leaks) or self.avoidable_over is not None or self.unjudged_fails

    @property
    def unjudged_fails(self) -> bool:
        """Whether it is a failure because it could not be judged."""
        return self.fail_on_inconclusive and self.verdict == Verdict.INCONCLUSIVE

    def __repr__(self) -> str:
        leaks = sum(finding.retained_bytes for finding in self.leaks)
        return f"<{type(self).__name__}: {self.verdict}{f', {bytes_text(leaks)} in leaks' if leaks else ''}>"
