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
    """All rules, in the order in which they are listed; `Match.order` is that in which a storage is offered to them."""

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
    """Memory that lies there for longer than it is needed: never a leak, and no exit status of itself."""
    NOTE = "note"


NOT_JUDGED = 2
"""Exit status of what could not be judged, where that is a failure: as of leakscope's other commands."""


class FreedBy(StrEnum):
    """Who lets the memory go."""

    GC = "gc"
    """Nothing alive holds it: it waits for a collection."""
    PROGRAM = "program"
    """A live root holds it."""
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
    """What one rule knows of a finding; a rule adds what its sentences need."""

    SUMMED: ClassVar[tuple[str, ...]] = ()
    """Fields whose sum over the ranks is told, beside bytes that are summed; all others are told of one rank."""

    is_bounded: bool = False
    """What is kept has a bound by design: a note, however it grows."""

    def title_for(self, finding: Finding, /) -> str:
        """What leaks, in one line."""
        return f"{finding.rule}: {finding.subject}"

    def advice_for(self, _: Finding, /) -> str:
        """What to do about it, as sentences; "" where there is nothing to say."""
        return ""

    def advice_with_graphs(self, finding: Finding, /) -> str:
        """What to do where the tensors that a container gains bring their graphs along."""
        name = finding.cut.written if finding.cut else finding.subject
        return (
            f"Store numbers in {name} instead of tensors: x.item(), or x.detach() if a tensor is needed. After "
            "backward "
            "a tensor still references an autograd node for each operation that created it. Their memory is counted by "
            "the allocator, but belongs to no tensor."
        )

    def short_advice(self) -> str | None:
        """One sentence at most, for the line that avoidable memory has; None where the advice itself stands there."""
        return None

    def preface(self) -> str:
        """Sentences ahead of the advice, whoever gives that."""
        return ""

    def without_a_cut(self, _: Finding, /) -> str:
        """What the script can do where it has no reference to cut, in short; "" where there is nothing to say."""
        return ""

    def why_no_cut(self) -> str:
        """Why there is no reference to cut; "" where the rule says it."""
        return ""

    def line_to_edit(self, _: Finding, /) -> str | None:
        """The line to begin at, "" where none is known; None where it is one of the cut's."""
        return None

    def over_ranks(self, each: Sequence[Facts]) -> Self:
        """These facts, with the sums of those of `each` rank, and a bound where each has one."""
        sums = {name: reduce(add, [getattr(facts, name) for facts in each]) for name in self.SUMMED}
        return replace(self, **sums, is_bounded=all(facts.is_bounded for facts in each))


@dataclass(frozen=True)
class Said(Facts):
    """The words of another package's rule, which needs no facts of its own then."""

    title: str
    advice: str = ""

    def title_for(self, _: Finding, /) -> str:
        """As it was given."""
        return str(self.title)

    def advice_for(self, _: Finding, /) -> str:
        """As it was given."""
        return str(self.advice)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run beside its findings; what finds it out adds what its sentences need."""

    rank: int | None = None
    """None where it is of the whole run."""


@dataclass(frozen=True)
class AliveAtEnd:
    """What was alive when the script's main code had returned."""

    rank: int
    categories: Mapping[str, int]
    """Bytes by what they are for."""
    uncollectable_bytes: int = 0
    """Of those that nothing of the program's holds, what gc never frees, by the counts of references."""


@dataclass(frozen=True)
class Bounded:
    """What gains it has a bound that is not reached yet."""

    items: int
    bound: int
    full_bytes: int
    """What it would hold when full."""


@dataclass(frozen=True)
class EmptiedLater:
    """The source has a line that empties what gains it, and that has not taken effect while it was watched."""

    where: str
    """`train.py:31`."""
    items: int
    """What it has, -1 where that is not known."""
    bound: int | None = None
    """Items above which the line takes effect; None where the source does not show it."""
    every: int | None = None
    """Steps after which it does, where the source shows it."""
    is_decided: bool = True
    """False where the source does not show when it takes effect, so that it may never do."""
    steps: int | None = None
    """Steps of a run that would show it; None where that cannot be told."""
    seen: int = 0
    """Step of the last snapshot, where the run went on to those steps and no snapshot was taken there."""
    full_bytes: int | None = None
    """What it would hold by then."""

    @property
    def text(self) -> str:
        """`cleared at epoch.py:13 above 64 items`."""
        when = ""
        if self.bound is not None:
            when = f" above {self.bound:,} items"
        elif self.every is not None:
            when = f" every {self.every:,} steps"
        return f"cleared at {self.where}{when}"


@dataclass(frozen=True)
class TooLarge:
    """A bound that is not reached yet, and is no reason to let it grow."""

    bound: Bounded
    holds: str = ""
    """`graphs`, `modules` or `parameters`; "" where it is the bytes that are too many."""
    memory_bytes: int | None = None
    """What there is in all; None where that is not known."""


@dataclass(frozen=True)
class CameToRest:
    """The memory counted after the last look did not go on as it grew."""

    step: int
    """Step of that look."""


@dataclass(frozen=True)
class FollowsInput:
    """It is made anew in each step, and was larger where what the model was given was larger."""

    elements: tuple[int, int]
    """Of the tensors that the model was given, in the step of the first look and in that of the last."""


@dataclass(frozen=True)
class HeldByCall:
    """A call of a library's that had not returned has it in its local variables."""

    package: str


@dataclass(frozen=True)
class OnlyTensorsFreed:
    """A forked copy made the cut, and what its grad nodes took is only counted."""

    bytes: int
    """Of tensors that went free."""


@dataclass(frozen=True)
class BufferKind:
    """Buffers of one place, direction and peer."""

    count: int
    direction: str
    """`send`, `recv`, the name of a collective, or `dist_autograd context`."""
    peer: int | None
    tag: int
    issued_at: str


@dataclass(frozen=True)
class CommBuffers:
    """Buffers of P2P and collective operations among what is kept."""

    count: int
    bytes: int
    dead: int
    """Those of them whose Python tensor is dead while the storage is not."""
    kinds: tuple[BufferKind, ...]
    """The commonest first."""
    in_graph: bool = False
    """A tensor of one of them is what a graph has made, or what one begins at."""

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
class Beside:
    """Memory of another kind that the same cut frees."""

    bytes: int
    noun: str


@dataclass(frozen=True)
class Upstream:
    """An issue under which the library's developers know the leak."""

    issue: str
    """owner/repository#number."""
    what: str
    """What the library does, as a clause."""
    cure: str = ""
    """What the script can do about it; "" where only the library can."""
