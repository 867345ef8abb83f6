"""Avoidable memory: a line for each holder in a section of its own, never a failure, in every form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import examples

from leakscope.findings.facts import Severity
from leakscope.findings.judge import avoidable_over
from leakscope.findings.model import Cut, CutReference, Finding, Findings, Sighting
from leakscope.findings.rules.late_release import LateReleaseFacts
from leakscope.report import FORMATS
from leakscope.run.model import Run

MIB = 1 << 20


def late(**changes: Any) -> Finding:
    facts = LateReleaseFacts(
        bytes=12 * MIB,
        holders=1,
        made_at="train.py:31 main (aten::addmm)",
        last_use_at="train.py:34 main (aten::pow in PowBackward0)",
        peak_at="train.py:36 main (aten::mm)",
        fall_bytes=9 * MIB,
        variables=("out",),
        arguments=(),
        is_saved=False,
    )
    cut = Cut((CutReference("local out", "train.py:31", "out in main()"),), 12 * MIB)
    return replace(
        examples.note_finding(),
        rule="late-release",
        facts=replace(facts, **changes),
        severity=Severity.AVOIDABLE,
        retained_bytes=12 * MIB,
        bytes_per_step=0.0,
        trace=(),
        cut=cut,
        fingerprint="0a0a0a0a",
        sightings=(Sighting(0, 5, 12 * MIB),),
    )


def told(*findings: Finding) -> tuple[Run, Findings]:
    run, clean = examples.clean()
    return run, replace(clean, findings=findings)


def test_no_form_calls_it_a_failure() -> None:
    run, findings = told(late())
    assert '"level": "note"' in FORMATS["sarif"](run, findings)
    assert 'failures="0"' in FORMATS["junit"](run, findings)
    assert '"severity": "avoidable"' in FORMATS["json"](run, findings)


OPEN = '<details class="section" open><summary><h2>Avoidable memory'
LINK = '<a href="#0a0a0a0a">Show it</a>'


@pytest.mark.process
@pytest.mark.parametrize(
    ("found", "is_open"),
    [
        ((late(),), True),
        ((replace(late(), retained_bytes=MIB // 2),), True),
        ((replace(late(), retained_bytes=MIB // 2), examples.library_finding()), False),
        ((late(), examples.library_finding()), True),
        ((late(), examples.growth_finding()), False),
    ],
)
def test_the_only_news_of_a_clean_run_stands_open_and_the_first_screen_leads_to_it(
    found: tuple[Finding, ...], is_open: bool
) -> None:
    run, findings = told(*found)
    if any(f.severity == Severity.LEAK for f in found):
        findings = replace(findings, verdict="leaks")
    page = FORMATS["html"](run, findings)
    assert (OPEN in page, LINK in page) == (is_open, is_open)
    assert "Avoidable memory (1)" in page


def test_passing_the_allowed_size_is_said_beside_the_verdict() -> None:
    found = (late(), late())
    assert avoidable_over(found, None) is None and avoidable_over(found, 24 * MIB) is None
    assert avoidable_over(found, 24 * MIB - 1) == 24 * MIB
    assert avoidable_over((examples.note_finding(),), 0) is None
    run, findings = told(*found)
    text = FORMATS["text"](run, replace(findings, exit_status=23, avoidable_over=24 * MIB))
    assert "Verdict  CLEAN (exit status 23)" in text
    assert "24.00 MiB avoidable, above the --fail-on-avoidable limit" in " ".join(text.split())
