"""Kinds that findings are sorted by, and the facts that rules give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from leakscope.findings.model import Finding


class RuleName(StrEnum):
    """All rules, in listing order; `Match.order` is the order in which a storage is offered to them."""

    UNCOLLECTABLE_CYCLE = "uncollectable-cycle"
    TENSOR_CYCLE = "tensor-cycle"
    DIST_AUTOGRAD_CONTEXT = "dist-autograd-context"
    P2P_BUFFER = "p2p-buffer"
    HOOK_PILEUP = "hook-pileup"
    FRAME_HOLD = "frame-hold"
    RETAINED_GRAPH = "retained-graph"
    VIEW_HOLD = "view-hold"
    STEP_GROWTH = "step-growth"
    OBJECT_GROWTH = "object-growth"
    NATIVE_HOLD = "native-hold"
    LATE_RELEASE = "late-release"
    IDLE_MEMORY = "idle-memory"
    RANK_SKEW = "rank-skew"
    ALLOCATOR = "allocator"
    WORKER_GROWTH = "worker-growth"
    WORKER_COPIES = "worker-copies"


class Severity(StrEnum):
    """Whether a finding decides the verdict."""

    LEAK = "leak"
    AVOIDABLE = "avoidable"
    """Memory that stays longer than needed: never a leak, and without effect on the exit status."""
    NOTE = "note"


NOT_JUDGED = 2
"""Exit status for a result that could not be judged, if that is a failure; as for other commands."""


class FreedBy(StrEnum):
    """What frees the memory."""

    GC = "gc"
    """Unreachable: awaits a collection."""
    PROGRAM = "program"
    """Reachable from a root."""
    NEVER = "never"
    """A cycle through C++ that gc cannot see."""


class Origin(StrEnum):
    """Whose leak it is."""

    APPLICATION = "application"
    LIBRARY = "library"


class HopStatus(StrEnum):
    """Whether an object on a trace should be alive."""

    EXPECTED = "expected"
    LEAKED = "leaked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of one rule about a finding; each rule adds what its sentences need."""

    SUMMED: ClassVar[tuple[str, ...]] = ()
    """Fields that are summed over the ranks, beside bytes; all others are reported for one rank."""

    is_bounded: bool = False
    """Whether the memory is bounded by design, which makes it a note however it grows."""

    def title_for(self, finding: Finding, /) -> str:
        """What leaks, in one line."""
        return f"{finding.rule}: {finding.subject}"

    def advice_for(self, _: Finding, /) -> str:
        """What to do about it; "" for nothing."""
        return ""

    def advice_with_graphs(self, finding: Finding, /) -> str:
        """What to do if the tensors that a container gains keep their graphs."""
        name = finding.cut.written if finding.cut else finding.subject
        return (
            f"Store numbers in {name} instead of tensors: x.item(), or x.detach() if a tensor is needed. After "
            "backward a tensor still references an autograd node for each operation that created it. Their memory is "
            "counted by the allocator, but belongs to no tensor."
        )

    def short_advice(self) -> str | None:
        """At most one sentence for the line of avoidable memory; None for the full advice."""
        return None

    def preface(self) -> str:
        """Sentences before the advice."""
        return ""

    def without_a_cut(self, _: Finding, /) -> str:
        """What the script can do without a reference to cut, in short; "" for nothing."""
        return ""

    def why_no_cut(self) -> str:
        """Why there is no reference to cut; "" if the rule explains it."""
        return ""

    def line_to_edit(self, _: Finding, /) -> str | None:
        """The line to start at, "" if unknown; None if it is one of the cut's."""
        return None

    def over_ranks(self, each: Sequence[Facts]) -> Self:
        """These facts with sums over `each` rank, and a bound if each has one."""
        sums = {name: reduce(add, [getattr(facts, name) for facts in each]) for name in self.SUMMED}
        return replace(self, **sums, is_bounded=all(facts.is_bounded for facts in each))


@dataclass(frozen=True)
class StaticText(Facts):
    """The title and advice of another package's rule without facts of its own."""

    title: str
    advice: str = ""

    def title_for(self, _: Finding, /) -> str:
        """The given title."""
        return str(self.title)

    def advice_for(self, _: Finding, /) -> str:
        """The given advice."""
        return str(self.advice)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts about a run beside its findings; subclasses add what their sentences need."""

    rank: int | None = None
    """None if it concerns the whole run."""


@dataclass(frozen=True)
class AliveAtEnd:
    """What was alive when the script's main code had returned."""

    rank: int
    categories: Mapping[str, int]
    """Bytes by purpose."""
    uncollectable_bytes: int = 0
    """The unreachable part that gc never frees, according to reference counts."""


@dataclass(frozen=True)
class Bounded:
    """The growing container has a bound that it has not reached yet."""

    items: int
    bound: int
    full_bytes: int
    """Contents when full."""


@dataclass(frozen=True)
class EmptiedLater:
    """A line of the source empties the growing container, which did not happen while it was watched."""

    where: str
    """`train.py:31`."""
    items: int
    """Current number of items, -1 if unknown."""
    bound: int | None = None
    """Items above which the line takes effect; None if unknown."""
    every: int | None = None
    """Steps after which it takes effect, if the source shows it."""
    is_decided: bool = True
    """False if the source does not show when it takes effect, so that it may never do so."""
    steps: int | None = None
    """Steps of a run that would show it; None if unknown."""
    seen: int = 0
    """Step of the last snapshot, if the run reached those steps without a snapshot there."""
    full_bytes: int | None = None
    """Contents by then."""

    @property
    def text(self) -> str:
        """As `cleared at epoch.py:13 above 64 items`."""
        when = ""
        if self.bound is not None:
            when = f" above {self.bound:,} items"
        elif self.every is not None:
            when = f" every {self.every:,} steps"
        return f"cleared at {self.where}{when}"


@dataclass(frozen=True)
class TooLarge:
    """A bound that is not reached yet and does not justify the growth."""

    bound: Bounded
    holds: str = ""
    """`graphs`, `modules` or `parameters`; "" if there are too many bytes."""
    memory_bytes: int | None = None
    """Total memory; None if unknown."""


@dataclass(frozen=True)
class Plateaued:
    """The memory counted after the last snapshot did not continue the growth."""

    step: int
    """Step of that snapshot."""


@dataclass(frozen=True)
class FollowsInput:
    """It is created anew in each step, and its size follows the model's input."""

    elements: tuple[int, int]
    """Elements of the model's input, in the steps of the first and last snapshot."""


@dataclass(frozen=True)
class HeldByCall:
    """A library call that had not returned has it in its local variables."""

    package: str


@dataclass(frozen=True)
class OnlyTensorsFreed:
    """A forked copy made the cut, which measures tensors only; grad nodes are counted."""

    bytes: int
    """Bytes of the freed tensors."""


@dataclass(frozen=True)
class BufferKind:
    """Buffers of one location, direction and peer."""

    count: int
    direction: str
    """`send`, `recv`, the name of a collective, or `dist_autograd context`."""
    peer: int | None
    tag: int
    issued_at: str


@dataclass(frozen=True)
class CommBuffers:
    """Communication buffers among the retained memory."""

    count: int
    bytes: int
    dead: int
    """Buffers whose Python tensor is dead while the storage is alive."""
    kinds: tuple[BufferKind, ...]
    """The most frequent first."""
    in_graph: bool = False
    """Whether a tensor of one of them is a result or a leaf of a graph."""

    def __add__(self, other: CommBuffers) -> CommBuffers:
        counts: Counter[tuple[str, int | None, int, str]] = Counter()
        for kind in (*self.kinds, *other.kinds):
            counts[kind.direction, kind.peer, kind.tag, kind.issued_at] += kind.count
        return CommBuffers(
            self.count + other.count,
            self.bytes + other.bytes,
            self.dead + other.dead,
            tuple(BufferKind(count, *kind) for kind, count in counts.most_common()),
            self.in_graph or other.in_graph,
        )


@dataclass(frozen=True)
class AlsoFreed:
    """Memory of another kind that the same cut frees."""

    bytes: int
    noun: str


@dataclass(frozen=True)
class LibraryIssue:
    """An issue in the library's tracker about the leak."""

    issue: str
    """owner/repository#number."""
    what: str
    """What the library does, as a clause."""
    cure: str = ""
    """The workaround for the script; "" if only the library can fix it."""
