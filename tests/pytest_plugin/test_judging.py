"""What a leak does to a test that shows it, and what a failing test says once and only once."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

import pytest
from support.examples import KIB, cycle_finding, growth_finding, leaking, note_finding, rank, run

from leakscope.findings.facts import Origin
from leakscope.findings.model import Finding, Findings
from leakscope.pytest_plugin.judging import (
    Judgement,
    Outcome,
    State,
    failing_text,
    judgement,
    judgement_of,
    together,
    weighed,
)
from leakscope.pytest_plugin.settings import Settings
from leakscope.verdict import Verdict

CYCLE = replace(cycle_finding(), sightings=(), retained_bytes=768 * KIB)
OF_LIBRARY = replace(growth_finding(), origin=Origin.LIBRARY, library="torch")
RUN = run(replace(rank(0), steps=()))


def of(*findings: Finding) -> Findings:
    return replace(leaking()[1], findings=findings)


@pytest.mark.parametrize(
    ("settings", "known", "states"),
    [
        (Settings(), (), [State.FAILS, State.OF_LIBRARY]),
        (Settings(strict=True), (), [State.FAILS, State.FAILS]),
        (Settings(allowance=768 * KIB), (), [State.ALLOWED, State.OF_LIBRARY]),
        (Settings(allowance=768 * KIB, strict=True), (), [State.FAILS, State.FAILS]),
        (Settings(), {"b41c07e2", "0f3a9c11"}, [State.KNOWN, State.KNOWN]),
        (Settings(update_baseline=True), (), [State.KNOWN, State.OF_LIBRARY]),
        (Settings(ignore=("torch",), strict=True), (), [State.FAILS, State.IGNORED]),
        (Settings(ignore=("*-*",)), {"b41c07e2"}, [State.IGNORED, State.IGNORED]),
    ],
)
def test_what_a_leak_does_to_its_test(settings: Settings, known: Collection[str], states: list[State]) -> None:
    leaks = weighed(of(CYCLE, OF_LIBRARY, note_finding()), settings, known)
    assert [leak.state for leak in leaks] == states


def test_a_leak_is_told_at_length_once_and_in_a_line_after_that() -> None:
    findings = of(CYCLE, OF_LIBRARY)
    leaks = weighed(findings, Settings(allowance=KIB), ())
    first = failing_text(RUN, findings, leaks, (), KIB)
    again = failing_text(RUN, findings, leaks, {"b41c07e2"}, KIB)
    assert first.splitlines()[0] == again.splitlines()[0] == "1 tensor leak, 768.00 KiB left behind, 1.00 KiB allowed"
    assert "Freed by:" in first and "Told by an earlier test" not in first
    assert again.splitlines()[2:] == [
        "Told by an earlier test, and in leakscope's summary:",
        "- [b41c07e2] 768.00 KiB: closure `extract` in stage_backward_weight holds itself and every intermediate of...",
        "Left as well, and in leakscope's summary: 1 closed by libraries.",
    ]
    assert OF_LIBRARY.fingerprint not in first


def test_a_report_carries_plain_data() -> None:
    findings = of(CYCLE, OF_LIBRARY)
    found = judgement(RUN, findings, weighed(findings, Settings(), ()), (), Settings())
    carried = found.as_data()
    assert judgement_of(json.loads(json.dumps(carried))) == found
    assert found.outcome == Outcome.FAILED and found.left[0].line == "stage.py:41"
    assert found.left[0].cut == "`closure extract`: 768.00 KiB would be freed"
    assert found.left[1].library == "torch"


def test_what_could_not_be_judged_says_why() -> None:
    unsure = Findings(Verdict.INCONCLUSIVE, "this torch hides it", 0)
    assert judgement(RUN, unsure, (), (), Settings()) == Judgement(Outcome.INCONCLUSIVE, "this torch hides it")


def test_calls_and_repeats_of_one_test_are_one_judgement() -> None:
    findings = of(CYCLE)
    failed = judgement(RUN, findings, weighed(findings, Settings(), ()), (), Settings())
    both = together([Judgement(Outcome.JUDGED, seconds=1.0, processes=True), replace(failed, seconds=2.0)])
    assert (both.outcome, both.seconds, both.processes) == (Outcome.FAILED, 3.0, True)
    assert len(both.left) == 1
