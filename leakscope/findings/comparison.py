"""Compares the leaks of two runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from leakscope.findings.facts import NOT_JUDGED, Severity
from leakscope.findings.model import NO_GROWTH, Finding, Findings
from leakscope.findings.verdict import was_judged
from leakscope.run.model import Run
from leakscope.verdict import Verdict

_DAY = re.compile(r"\d{4}-\d\d-\d\d")


WORSE = 1.5
"""Factor from which a leak in both runs is worse. Heuristic: figures of one leak vary by less."""
WORSE_FOUND = 23
"""Exit status if a leak is new or worse, the same as that of `run` for leaks."""


class Change(StrEnum):
    """The change of a leak, in reporting order."""

    NEW = "new"
    WORSE = "worse"
    PERSISTING = "persisting"
    BETTER = "better"
    NOT_SEEN = "not_seen"
    """One run has it, and the other could not have shown it."""
    SUPPRESSED = "suppressed"
    """The base run has it, and it is suppressed in the new one."""
    FIXED = "fixed"


@dataclass(frozen=True)
class NotSeen:
    """Why the other run could not have shown a leak."""

    ranks: tuple[int, ...] = ()
    """Ranks that have it and that were not judged there."""
    until: int | None = None
    """Step of the last snapshot, which was before the leak began."""


@dataclass(frozen=True)
class Judged:
    """One of the two runs."""

    run: Run
    findings: Findings

    @property
    def could_be_judged(self) -> bool:
        """Whether its leaks could be judged."""
        return self.findings.verdict != Verdict.INCONCLUSIVE

    @property
    def reported(self) -> tuple[Finding, ...]:
        """All its findings, suppressed ones last."""
        return (*self.findings.findings, *self.findings.suppressed)


@dataclass(frozen=True)
class Compared:
    """One leak in both runs."""

    change: Change
    base: Finding | None
    """None if only the new run has it, or has it as a leak."""
    new: Finding | None
    """None if only the base run has it; a note if it now grows too little for a leak."""
    unseen: NotSeen | None = None
    """Why it is `NOT_SEEN`; None if the whole run could not be judged."""

    @property
    def finding(self) -> Finding:
        """The finding of the new run, else of the base run."""
        found = self.new or self.base
        assert found is not None
        return found

    @property
    def largest(self) -> tuple[float, int]:
        """Bytes per step, then bytes held, in the run with more."""
        both = [finding for finding in (self.base, self.new) if finding is not None]
        return max(f.bytes_per_step for f in both), max(f.retained_bytes for f in both)


@dataclass(frozen=True)
class RunComparison:
    """Two runs, and the change of each leak."""

    base: Judged
    new: Judged
    leaks: tuple[Compared, ...]
    """Each leak of either run once: new ones first, the largest first within each kind."""
    worse: float = WORSE
    """The factor from which a leak is worse."""

    @property
    def could_be_judged(self) -> bool:
        """Whether the leaks of both runs could be judged."""
        return self.base.could_be_judged and self.new.could_be_judged

    @property
    def are_related(self) -> bool:
        """Whether they ran a script of one name, or have a finding in common."""
        names = {f.fingerprint for f in self.base.reported} & {f.fingerprint for f in self.new.reported}
        return bool(names) or script_of(self.base.run) == script_of(self.new.run)

    @property
    def exit_status(self) -> int:
        """2 if one of them could not be judged, 23 if a leak is new or worse, else 0."""
        if not self.could_be_judged:
            return NOT_JUDGED
        return WORSE_FOUND if self.of(Change.NEW) or self.of(Change.WORSE) else 0

    def of(self, change: Change) -> tuple[Compared, ...]:
        """The leaks of one kind, the largest first."""
        return tuple(leak for leak in self.leaks if leak.change == change)


def compare(base: Judged, new: Judged, worse: float = WORSE) -> RunComparison:
    """Compare the leaks of two runs; suppressed findings are not leaks.

    Args:
        base: The earlier run.
        new: The later run, whose `min_bytes` is the minimum change in a rank's bytes per step.
        worse: Factor of bytes per step and rank from which a leak is worse; better, if it decreased by it.

    """
    before, after = _by_name(base.reported), _by_name(new.reported)
    leaks = []
    for name in {**after, **before}:
        had, has = before.get(name), after.get(name)
        if (had is not None and _leaks(had)) or (has is not None and _leaks(has)):
            leaks.append(_compared(base, new, had, has, worse))
    order = {change: place for place, change in enumerate(Change)}
    leaks.sort(key=lambda leak: (order[leak.change], *(-size for size in leak.largest), leak.finding.fingerprint))
    return RunComparison(base, new, tuple(leaks), worse)


def script_of(run: Run) -> str:
    """Name of the script or module that it ran."""
    words = run.command
    if words[:1] == ("-m",):
        return " ".join(words[:2])
    return PurePath(words[0]).name if words else ""


def rank_rate(finding: Finding | None) -> float:
    """Average bytes per step of the ranks that have it."""
    return 0.0 if finding is None else finding.bytes_per_step / max(len(finding.ranks), 1)


def _by_name(findings: Iterable[Finding]) -> dict[tuple[str, int], Finding]:
    """By fingerprint and, for equal ones, by position."""
    times: Counter[str] = Counter()
    found = {}
    for finding in findings:
        found[finding.fingerprint, times[finding.fingerprint]] = finding
        times[finding.fingerprint] += 1
    return found


def _leaks(finding: Finding) -> bool:
    return finding.is_leak and finding.suppressed_by is None


def _compared(base: Judged, new: Judged, had: Finding | None, has: Finding | None, worse: float) -> Compared:
    if has is not None and _leaks(has):
        if not base.could_be_judged:
            return Compared(Change.NOT_SEEN, had, has)
        if had is None or had.severity != Severity.LEAK:
            return Compared(Change.NEW, None, has)
        return Compared(_grows(had, has, worse, _least(new.run)), had, has)
    assert had is not None
    if has is not None and has.severity == Severity.LEAK:
        return Compared(Change.SUPPRESSED, had, has)
    if not new.could_be_judged:
        return Compared(Change.NOT_SEEN, had, None)
    if has is not None and has.severity == Severity.NOTE and has.bytes_per_step:
        return Compared(Change.BETTER, had, has)
    unseen = _unseen(had, new)
    return Compared(Change.FIXED if unseen is None else Change.NOT_SEEN, had, None, unseen)


def _least(run: Run) -> int:
    """Bytes per step below which a change of a leak's growth is not significant."""
    return NO_GROWTH if run.min_bytes is None else run.min_bytes


def _grows(had: Finding, has: Finding, worse: float, least: int) -> Change:
    before, now = rank_rate(had), rank_rate(has)
    if abs(now - before) < max(least, 1):
        return Change.PERSISTING
    if now >= worse * before:
        return Change.WORSE
    return Change.BETTER if before >= worse * now else Change.PERSISTING


def _unseen(had: Finding, new: Judged) -> NotSeen | None:
    """Why a leak that the new run does not have may exist nevertheless; None if it would have been seen."""
    judged = {rank.number for rank in new.run.ranks if was_judged(new.run, rank)}
    missing = tuple(rank for rank in had.ranks if rank not in judged)
    if missing:
        return NotSeen(missing)
    last = max((snapshot.step for rank in new.run.ranks for snapshot in rank.heap_snapshots), default=0)
    return NotSeen(until=last) if last < (had.first_step or 0) else None
