"""A finding: one distinct leak, the same however often it was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from leakscope.findings.counts.growth import AlsoGrows
from leakscope.findings.facts import (
    AliveAtEnd,
    Beside,
    Bounded,
    CameToRest,
    CommBuffers,
    EmptiedLater,
    Facts,
    FollowsInput,
    HeldByCall,
    OnlyTensorsFreed,
    RunFacts,
    TooLarge,
    Upstream,
)
from leakscope.findings.kinds import FreedBy, HopStatus, Origin, Severity
from leakscope.findings.ledger import LedgerInterval
from leakscope.findings.why import HopReason, Why, WhyUnjudged
from leakscope.findings.workers.ledger import LoaderMemory
from leakscope.graph.model import ObjectKind
from leakscope.record.suppression import Suppression
from leakscope.units import bytes_text
from leakscope.verdict import Returned, Verdict


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
    """One distinct leak."""

    rule: str
    """A `RuleName`, or the name of another package's rule."""
    facts: Facts
    """What its rule knows of it; `report/wording` makes its title and its advice of them."""
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
    """The verdict of a run and everything behind it."""

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
