"""Which findings fail a test, and in what words?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leakscope.findings.kinds import Origin, Severity
from leakscope.findings.why import Reason, Why
from leakscope.units import bytes_text

if TYPE_CHECKING:
    from leakscope.findings.model import Finding, Findings
    from leakscope.record.model import Run


class LeaksFound(AssertionError):
    """A block left tensor memory behind; the message holds each leak's trace."""

    findings: Findings
    """What was found, the leaks among it."""

    def __init__(self, message: str, findings: Findings) -> None:
        super().__init__(message)
        self.findings = findings


def leaks_of(findings: Findings) -> tuple[Finding, ...]:
    """The findings that are leaks of the application's own."""
    return tuple(f for f in findings.findings if f.severity == Severity.LEAK and f.origin == Origin.APPLICATION)


def leaks_text(run: Run, findings: Findings, allowance: int = 0) -> str:
    """What a failing test says: the sum, the `allowance` in bytes, then every leak's trace."""
    from leakscope.report.text.page import render_in_test
    from leakscope.report.wording import why_text

    repeats = sum(len(rank.steps) for rank in run.ranks)
    allowed = f", {bytes_text(allowance)} allowed" if allowance else ""
    called = f" after {repeats} repeats, each of them a step" if repeats else ""
    total = why_text(replace(findings, why=left_behind(findings)))
    return f"{total}{called}{allowed}\n\n{render_in_test(run, findings)}"


def left_behind(findings: Findings) -> Why:
    """How many leaks there are, and their bytes."""
    leaks = leaks_of(findings)
    return Why(reason=Reason.LEFT_BEHIND, count=len(leaks), bytes=sum(finding.retained_bytes for finding in leaks))
