"""Which findings are known already, and which of what is known was not found?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakscope.findings.kinds import Severity
from leakscope.findings.model import Finding
from leakscope.findings.naming.place import place_of
from leakscope.record.model import Run
from leakscope.record.suppression import Suppression

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
