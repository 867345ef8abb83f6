"""What is known of a run at each point of its judging: each stage of `judge` adds what it finds out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leakscope.findings.counts.growth import AlsoGrows
from leakscope.findings.facts import AliveAtEnd, RunFacts
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.over_looks import GroupsOverLooks
from leakscope.findings.known.suppressed import Known
from leakscope.findings.ledger import LedgerInterval
from leakscope.findings.memory.account import Account
from leakscope.findings.memory.balance import Balance
from leakscope.findings.memory.oom import Shortage
from leakscope.findings.model import Finding, Findings, RankSummary, Unjudged
from leakscope.findings.thresholds import Thresholds
from leakscope.findings.workers.ledger import LoaderMemory
from leakscope.record.model import Look, Rank, Run


@dataclass(frozen=True)
class OpenCase:
    """A finding that would be a leak if more looks had seen it grow."""

    fingerprint: str
    """That of the finding it has become part of."""
    written: str
    """What grows, as the user would write it."""


@dataclass(frozen=True)
class RankCase:
    """What is known of one rank while it is judged by itself."""

    rank: Rank
    warmup: int
    thresholds: Thresholds
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines of the user's own source files."""
    looks: tuple[Look, ...] = ()
    """Those that growth is read from."""
    groups: GroupsOverLooks = field(default_factory=GroupsOverLooks)
    candidates: tuple[Candidate, ...] = ()
    arrays: tuple[Candidate, ...] = ()
    """Candidates of numpy arrays and their like, then those of other objects that are no tensors."""
    graphs: tuple[Candidate, ...] = ()
    """Candidates of grad nodes, in a graph of their own that begins as that of the look."""
    balances: tuple[Balance, ...] = ()
    """One for each look."""
    findings: tuple[Finding, ...] = ()
    """In the order of the candidates until those with one cut are merged."""
    graph_findings: tuple[Finding, ...] = ()
    """In the order of the candidates of grad nodes until those of tensors that are kept are told with these."""
    became: tuple[str, ...] = ()
    """Fingerprint of the finding that each candidate has become part of."""
    array_findings: tuple[Finding, ...] = ()
    arrays_became: tuple[str, ...] = ()
    """The same of the candidates of arrays."""
    open_cases: tuple[OpenCase, ...] = ()
    array_open_cases: tuple[OpenCase, ...] = ()
    leaking: tuple[Candidate, ...] = ()
    """Candidates that are leaks."""
    gaps: tuple[Finding, ...] = ()
    """Growth that was counted and that no storage explains."""
    scattered: tuple[Finding, ...] = ()
    """Growth under ever new names."""
    unjudged: tuple[Unjudged, ...] = ()


@dataclass(frozen=True)
class JudgedRank:
    """What is known of one rank that was judged by itself, and all that is asked of its heaps afterwards."""

    number: int
    findings: tuple[Finding, ...]
    unjudged: tuple[Unjudged, ...]
    open_cases: tuple[OpenCase, ...]
    account: Account
    summary: RankSummary
    held: Mapping[int, int] | None
    """As `held_at_last` tells it."""
    garbage: int
    """Bytes that waited for gc when it was looked at last."""
    listed: tuple[AliveAtEnd, ...]
    shortage: Shortage
    device_failures: tuple[RunFacts, ...]
    drag: tuple[RunFacts, ...]
    loaders: tuple[LoaderMemory, ...] = ()
    also_grows: tuple[AlsoGrows, ...] = ()


@dataclass(frozen=True)
class Case:
    """What is known of a run."""

    run: Run
    known: Known
    leak_exit_code: int
    ranks: tuple[JudgedRank, ...]
    ignore_library: bool = False
    """What a library leaks decides no verdict."""
    fail_on_avoidable: int | None = None
    """Avoidable bytes above which the exit status is that of leaks; None where they never decide it."""
    fail_on_inconclusive: bool = False
    """A run that cannot be judged is a failure."""
    findings: tuple[Finding, ...] = ()
    summaries: Mapping[int, RankSummary] = field(default_factory=dict)
    unjudged: tuple[Unjudged, ...] = ()
    ledgers: Mapping[int, tuple[LedgerInterval, ...]] = field(default_factory=dict)
    judged: Findings | None = None
    """What the last stage says."""


RankStage = Callable[[RankCase], RankCase]
Stage = Callable[[Case], Case]
