"""Findings that a baseline or a suppression file knows, and the comparison of two runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from leakscope.findings.facts import NOT_JUDGED, Severity
from leakscope.findings.model import NO_GROWTH, Finding, Findings
from leakscope.findings.naming import place_of
from leakscope.findings.verdict import was_judged
from leakscope.run.model import Run
from leakscope.run.suppression import Suppression
from leakscope.verdict import Verdict

_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Known:
    """What is known of a run, and what of it does not apply to it."""

    applies: tuple[Suppression, ...] = ()
    expired: tuple[Suppression, ...] = ()
    """Those whose last day was before the run."""


def known_of(run: Run, more: Sequence[Suppression]) -> Known:
    """What the run was given and what else is known, on the day that the run was started."""
    day = _DAY.match(run.started)
    named = (*run.suppressions, *more)
    expired = tuple(one for one in named if one.has_expired(day.group() if day else ""))
    return Known(tuple(one for one in named if one not in expired), expired)


def suppression_of(finding: Finding, known: Known) -> Suppression | None:
    """What sets it apart: the first that names it; None where nothing does."""
    return next((one for one in known.applies if _names(one, finding)), None)


def unused(known: Known, findings: Sequence[Finding]) -> tuple[Suppression, ...]:
    """Lines of files that name none of the findings; of a baseline it is good news where something is gone."""
    return tuple(
        one for one in known.applies if not one.is_baseline and not any(_names(one, finding) for finding in findings)
    )


def _names(one: Suppression, finding: Finding) -> bool:
    if one.is_baseline:
        return one.pattern == finding.fingerprint and (one.was_leak or finding.severity != Severity.LEAK)
    pattern = re.compile(".*".join(map(re.escape, one.pattern.split("*"))), re.DOTALL)
    return any(pattern.fullmatch(text) for text in _texts(finding))


def _texts(finding: Finding) -> Iterator[str]:
    """All that a pattern may name it by."""
    yield from filter(None, (finding.fingerprint, finding.rule, finding.subject, finding.library))
    references = () if finding.cut is None else finding.cut.references
    yield from (reference.written for reference in references)
    for where in (*(at for reference in references for at in (reference.where, *reference.added_at)), *finding.made_at):
        place = place_of(where)
        yield from (where, place.at if place is not None else where)


WORSE = 1.5
"""Factor from which on a leak that both runs have has become worse; chosen: figures of one leak differ by less."""
WORSE_FOUND = 23
"""Exit status where a leak is new or worse, as `run` has it for leaks."""


class Change(StrEnum):
    """What has become of a leak, in the order in which it is told."""

    NEW = "new"
    WORSE = "worse"
    PERSISTING = "persisting"
    BETTER = "better"
    NOT_SEEN = "not_seen"
    """One run has it, and the other could not have shown it."""
    SUPPRESSED = "suppressed"
    """The base run has it, and in the new one it is suppressed."""
    FIXED = "fixed"


@dataclass(frozen=True)
class NotSeen:
    """Why the other run could not have shown a leak."""

    ranks: tuple[int, ...] = ()
    """Ranks that have it and that were not judged there."""
    until: int | None = None
    """The last step that it was looked at after, which was before the leak began."""


@dataclass(frozen=True)
class Judged:
    """One of the two runs."""

    run: Run
    findings: Findings

    @property
    def could_be_judged(self) -> bool:
        """Whether it says anything of what leaks."""
        return self.findings.verdict != Verdict.INCONCLUSIVE

    @property
    def told(self) -> tuple[Finding, ...]:
        """All its findings, those that are suppressed after the others."""
        return (*self.findings.findings, *self.findings.suppressed)


@dataclass(frozen=True)
class Compared:
    """One leak, as each of the two runs has it."""

    change: Change
    base: Finding | None
    """None where only the new run has it, or has it as a leak."""
    new: Finding | None
    """None where only the base run has it; a note where it grows too little now to be a leak."""
    unseen: NotSeen | None = None
    """Why it is `NOT_SEEN`; None where that is because the whole run could not be judged."""

    @property
    def finding(self) -> Finding:
        """As the new run has it, else as the base run had it."""
        found = self.new or self.base
        assert found is not None
        return found

    @property
    def largest(self) -> tuple[float, int]:
        """Bytes a step, then bytes held, in whichever run it is more."""
        both = [finding for finding in (self.base, self.new) if finding is not None]
        return max(f.bytes_per_step for f in both), max(f.retained_bytes for f in both)


@dataclass(frozen=True)
class Comparison:
    """Two runs and what has become of each leak."""

    base: Judged
    new: Judged
    leaks: tuple[Compared, ...]
    """Each leak of either run once: new ones first, of each kind the largest first."""
    worse: float = WORSE
    """The factor that makes a leak worse."""

    @property
    def could_be_judged(self) -> bool:
        """Whether both runs say anything of what leaks."""
        return self.base.could_be_judged and self.new.could_be_judged

    @property
    def are_related(self) -> bool:
        """Whether they ran a script of one name, or have a finding in common."""
        names = {f.fingerprint for f in self.base.told} & {f.fingerprint for f in self.new.told}
        return bool(names) or script_of(self.base.run) == script_of(self.new.run)

    @property
    def exit_status(self) -> int:
        """2 where one of them could not be judged, 23 where a leak is new or worse, else 0."""
        if not self.could_be_judged:
            return NOT_JUDGED
        return WORSE_FOUND if self.of(Change.NEW) or self.of(Change.WORSE) else 0

    def of(self, change: Change) -> tuple[Compared, ...]:
        """The leaks of one kind, the largest first."""
        return tuple(leak for leak in self.leaks if leak.change == change)


def compare(base: Judged, new: Judged, worse: float = WORSE) -> Comparison:
    """What has become of each leak of either run; what is suppressed in a run is no leak of it.

    Args:
        base: the run before.
        new: the run after, whose `min_bytes` is the least change of a rank's bytes a step that is one.
        worse: factor of bytes a step and rank from which on a leak is worse; better, by which it has become less.

    """
    before, after = _by_name(base.told), _by_name(new.told)
    leaks = []
    for name in {**after, **before}:
        had, has = before.get(name), after.get(name)
        if (had is not None and _leaks(had)) or (has is not None and _leaks(has)):
            leaks.append(_compared(base, new, had, has, worse))
    order = {change: place for place, change in enumerate(Change)}
    leaks.sort(key=lambda leak: (order[leak.change], *(-size for size in leak.largest), leak.finding.fingerprint))
    return Comparison(base, new, tuple(leaks), worse)


def script_of(run: Run) -> str:
    """Name of the script, or of the module, that it ran."""
    words = run.command
    if words[:1] == ("-m",):
        return " ".join(words[:2])
    return PurePath(words[0]).name if words else ""


def rank_rate(finding: Finding | None) -> float:
    """Bytes a step of each rank that has it, on average."""
    return 0.0 if finding is None else finding.bytes_per_step / max(len(finding.ranks), 1)


def _by_name(findings: Iterable[Finding]) -> dict[tuple[str, int], Finding]:
    """By fingerprint and, where two have the same, by which of them it is."""
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
    """Bytes a step below which a change of a leak's growth says nothing."""
    return NO_GROWTH if run.min_bytes is None else run.min_bytes


def _grows(had: Finding, has: Finding, worse: float, least: int) -> Change:
    before, now = rank_rate(had), rank_rate(has)
    if abs(now - before) < max(least, 1):
        return Change.PERSISTING
    if now >= worse * before:
        return Change.WORSE
    return Change.BETTER if before >= worse * now else Change.PERSISTING


def _unseen(had: Finding, new: Judged) -> NotSeen | None:
    """Why a leak that the new run does not have may be there all the same; None where it would have been seen."""
    judged = {rank.number for rank in new.run.ranks if was_judged(new.run, rank)}
    missing = tuple(rank for rank in had.ranks if rank not in judged)
    if missing:
        return NotSeen(missing)
    last = max((look.step for rank in new.run.ranks for look in rank.looks), default=0)
    return NotSeen(until=last) if last < (had.first_step or 0) else None
