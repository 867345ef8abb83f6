"""Avoidable memory has a section of its own, which is open where nothing else is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import examples

from leakscope.findings.facts import Severity
from leakscope.findings.judge import avoidable_over
from leakscope.findings.model import Finding
from leakscope.report import FORMATS
from leakscope.verdict import Verdict

MIB = 1 << 20
LATE = replace(
    examples.note_finding(), rule="late-release", severity=Severity.AVOIDABLE, retained_bytes=12 * MIB,
    bytes_per_step=0.0, trace=(), cut=None, fingerprint="0a0a0a0a",
)  # fmt: skip
SMALL = replace(LATE, retained_bytes=MIB // 2)


@pytest.mark.process
@pytest.mark.parametrize(
    ("found", "is_open"),
    [((LATE, examples.library_finding()), True), ((SMALL, examples.library_finding()), False),
     ((SMALL,), True), ((LATE, examples.growth_finding()), False)],
)  # fmt: skip
def test_the_only_result_of_a_clean_run_is_open_and_linked_from_the_first_screen(
    found: tuple[Finding, ...], is_open: bool
) -> None:
    run, findings = examples.clean()
    leaks = any(finding.severity == Severity.LEAK for finding in found)
    findings = replace(findings, findings=found, verdict=Verdict.LEAKS if leaks else Verdict.CLEAN)
    page = FORMATS["html"](run, findings)
    assert ('<details class="section" open><summary><h2>Avoidable memory' in page) is is_open
    assert ('<a href="#0a0a0a0a">' in page) is is_open and "Avoidable memory (1)" in page


def test_the_sum_counts_against_the_limit() -> None:
    assert avoidable_over((LATE, LATE), None) is avoidable_over((LATE, LATE), 24 * MIB) is None
    assert avoidable_over((LATE, LATE), 24 * MIB - 1) == 24 * MIB
    assert avoidable_over((examples.note_finding(),), 0) is None
