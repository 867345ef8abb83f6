"""What of a run goes under which heading?"""

from __future__ import annotations

from leakscope.findings.kinds import Origin, Severity
from leakscope.findings.model import Finding, Findings
from leakscope.record.kinds import Occasion
from leakscope.record.model import Run


def leaks(findings: Findings) -> tuple[Finding, ...]:
    """What decides the verdict."""
    return tuple(f for f in findings.findings if f.origin != Origin.LIBRARY and f.severity == Severity.LEAK)


def notes(findings: Findings) -> tuple[Finding, ...]:
    """The application's findings that are no leaks."""
    return tuple(f for f in findings.findings if f.origin != Origin.LIBRARY and f.severity != Severity.LEAK)


def library(findings: Findings) -> tuple[Finding, ...]:
    """What libraries hold."""
    return tuple(f for f in findings.findings if f.origin == Origin.LIBRARY)


def steps_of(run: Run) -> int:
    """Steps of the rank that took most."""
    return max((max(rank.ended.steps, len(rank.steps)) for rank in run.ranks), default=0)


def of_block(run: Run) -> bool:
    """Whether it was one block of code, without steps."""
    return any(look.occasion == Occasion.BLOCK for rank in run.ranks for look in rank.looks)
