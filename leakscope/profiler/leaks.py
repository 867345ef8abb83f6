"""Which findings fail a test, and in what words?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leakscope.findings.why import Reason, Why
from leakscope.units import bytes_text

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.profiler.result import Result
    from leakscope.record.model import Run


class LeaksFound(AssertionError):
    """A block left tensor memory behind; the message holds each leak's trace."""

    findings: Result
    """What was found, the leaks among it."""

    def __init__(self, message: str, findings: Result) -> None:
        super().__init__(message)
        self.findings = findings


def sum_text(run: Run, findings: Findings, left: Why, allowance: int) -> str:
    """`2 tensor leaks, 3.00 KiB left behind by 3 repeats, each of them a step (1 to 3), 1.00 KiB allowed`."""
    from leakscope.report.wording import why_text

    steps = [step.number for rank in run.ranks for step in rank.steps]
    by = f" by {len(steps)} repeats, each of them a step ({steps[0]} to {steps[-1]})" if steps else ""
    allowed = f", {bytes_text(allowance)} allowed" if allowance else ""
    return f"{why_text(replace(findings, why=left))}{by}{allowed}"


def raise_leaks(found: Result, allowance: int) -> None:
    """Raise LeaksFound, with the sum and every leak's trace, where the leaks hold more than that many bytes."""
    from leakscope.report.text.page import render_in_test

    left = left_behind(found)
    if left.bytes > allowance:
        told = f"{sum_text(found.run, found, left, allowance)}\n\n{render_in_test(found.run, found)}"
        raise LeaksFound(told, found)


def left_behind(findings: Findings) -> Why:
    """How many leaks there are, and their bytes."""
    held = sum(finding.retained_bytes for finding in findings.leaks)
    return Why(reason=Reason.LEFT_BEHIND, count=len(findings.leaks), bytes=held)
