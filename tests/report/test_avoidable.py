"""Avoidable memory: a line for each holder in a section of its own, never a failure, in every form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import examples

from leakscope.findings.facts import Severity
from leakscope.findings.judge import avoidable_over
from leakscope.findings.model import Cut, CutReference, Finding, Findings, Sighting
from leakscope.findings.peak import Releaser
from leakscope.findings.rules.late_release import LateReleaseFacts, OthersFacts
from leakscope.report import FORMATS
from leakscope.report.finding_text import title
from leakscope.report.text.page import render
from leakscope.report.verdict_text import next_text
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "unused after train.py:34; `del out` there lowers the peak by 9.00 MiB"),
        ({"last_use_at": ""}, "unused since its allocation at train.py:31; `del out` there"),
        ({"last_use_at": "", "made_at": ""}, "unused in the step; `del out` there"),
        ({"variables": ()}, "dropping it there lowers the peak"),
        ({"holders": 2, "variables": ("out", "h")}, "`del out, h` there lowers the peak"),
        ({"arguments": ("out",)}, "dropping it there lowers the peak"),
    ],
)
def test_one_line_says_how_much_who_since_when_and_what_to_do(changes: dict[str, Any], said: str) -> None:
    line = title(late(**changes))
    assert line.startswith("`out in main()` at train.py:31: 12.00 MiB at the step's peak, ")
    assert said in line


def test_the_text_has_a_section_of_its_own_the_largest_first() -> None:
    grads = replace(late(), facts=OthersFacts(2 * MIB, Releaser.GRADIENT, MIB), retained_bytes=2 * MIB, cut=None)
    text = render(*told(grads, late(arguments=("out",))), verbose=True)
    section = text[text.index("Avoidable memory (2): not a leak") : text.index("Ranks\n")]
    first, second = (" ".join(line.split()) for line in section.split("\n- ")[1:])
    assert first == (
        "rank 0: `out in main()` at train.py:31: 12.00 MiB at the step's peak, unused after train.py:34; dropping it "
        "there lowers the peak by 9.00 MiB. out is an argument of a running call: pass it in a list that the callee "
        "empties."
    )
    assert second.startswith("rank 0: Gradients of the last step are kept until zero_grad: 2.00 MiB at the step's peak")
    assert second.endswith("before the next forward: the peak falls by 1.00 MiB.")
    assert "Notes" not in text and "Avoidable" not in render(*told(), verbose=True)


def test_without_verbose_it_is_a_line_with_the_largest() -> None:
    lines = FORMATS["text"](*told(late(), late())).splitlines()
    (line,) = (line for line in lines if line.startswith("Avoidable"))
    assert line.startswith("Avoidable  24.00 MiB by 2 holders: `out in main()` at train.py:31: 12.00 MiB")
    assert next_text(*told(late(), late())) == (
        "No leaks. 24.00 MiB of avoidable memory, mostly held by `out in main()` at train.py:31."
    )
    assert "Avoidable" not in FORMATS["text"](*told())


def test_no_form_calls_it_a_failure() -> None:
    run, findings = told(late())
    assert '"level": "note"' in FORMATS["sarif"](run, findings)
    assert 'failures="0"' in FORMATS["junit"](run, findings)
    assert '"severity": "avoidable"' in FORMATS["json"](run, findings)


@pytest.mark.process
def test_the_page_has_the_same_lines_with_what_holds_it_folded() -> None:
    page = FORMATS["html"](*told(late()))
    assert "Avoidable memory (1)" in page and "lowers the peak by 9.00 MiB" in page
    assert "Avoidable memory" not in FORMATS["html"](*told())


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


@pytest.mark.process
def test_the_page_shows_them_at_once_where_they_are_more_than_allowed() -> None:
    run, findings = told(replace(late(), retained_bytes=MIB // 2), examples.library_finding())
    assert OPEN not in FORMATS["html"](run, findings)
    assert OPEN in FORMATS["html"](run, replace(findings, avoidable_over=24 * MIB))


def test_passing_the_allowed_size_is_said_beside_the_verdict() -> None:
    found = (late(), late())
    assert avoidable_over(found, None) is None and avoidable_over(found, 24 * MIB) is None
    assert avoidable_over(found, 24 * MIB - 1) == 24 * MIB
    assert avoidable_over((examples.note_finding(),), 0) is None
    run, findings = told(*found)
    text = FORMATS["text"](run, replace(findings, exit_status=23, avoidable_over=24 * MIB))
    assert "Verdict  CLEAN (exit status 23)" in text
    assert "24.00 MiB avoidable, above the --fail-on-avoidable limit" in " ".join(text.split())
