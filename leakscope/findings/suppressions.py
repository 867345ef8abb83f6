"""Findings that a baseline or a suppression file knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakscope.findings.facts import Severity
from leakscope.findings.model import Finding
from leakscope.findings.naming import place_of
from leakscope.run.model import Run
from leakscope.run.suppression import Suppression

_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Known:
    """The known findings of a run, and those that do not apply."""

    applies: tuple[Suppression, ...] = ()
    expired: tuple[Suppression, ...] = ()
    """Suppressions that had expired before the run."""


def known_of(run: Run, more: Sequence[Suppression]) -> Known:
    """The suppressions of the run and further ones, on the day when the run was started."""
    day = _DAY.match(run.started)
    named = (*run.suppressions, *more)
    expired = tuple(one for one in named if one.has_expired(day.group() if day else ""))
    return Known(tuple(one for one in named if one not in expired), expired)


def suppression_of(finding: Finding, known: Known, severity: Severity | None = None) -> Suppression | None:
    """The first suppression that matches a finding, of this `severity` if given; None if none does."""
    return next((one for one in known.applies if _names(one, finding, severity or finding.severity)), None)


def unused(known: Known, findings: Sequence[Finding]) -> tuple[Suppression, ...]:
    """Lines of files that match none of the findings; for a baseline a fixed leak is expected."""
    return tuple(
        one
        for one in known.applies
        if not one.is_baseline and not any(_names(one, finding, finding.severity) for finding in findings)
    )


def _names(one: Suppression, finding: Finding, severity: Severity) -> bool:
    if one.is_baseline:
        return one.pattern == finding.fingerprint and (one.was_leak or severity != Severity.LEAK)
    pattern = re.compile(".*".join(map(re.escape, one.pattern.split("*"))), re.DOTALL)
    return any(pattern.fullmatch(text) for text in _texts(finding))


def _texts(finding: Finding) -> Iterator[str]:
    """All texts that a pattern may match."""
    yield from filter(None, (finding.fingerprint, finding.rule, finding.subject, finding.library))
    references = () if finding.cut is None else finding.cut.references
    yield from (reference.written for reference in references)
    for where in (*(at for reference in references for at in (reference.where, *reference.added_at)), *finding.made_at):
        place = place_of(where)
        yield from (where, place.at if place is not None else where)
