"""What a leak does to its test, and the message of a test that fails."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.examples import KIB, cycle_finding, growth_finding, leaking, note_finding, rank, run

from leakscope.findings.facts import Origin
from leakscope.findings.model import Finding, Findings
from leakscope.pytest_plugin.judging import (
    Judgement,
    LeakState,
    PhaseOutcome,
    failure_message,
    judge_leaks,
    judgement,
    judgement_from_data,
    together,
)
from leakscope.pytest_plugin.settings import Settings
from leakscope.run.suppression import Suppression
from leakscope.verdict import Verdict

CYCLE = replace(cycle_finding(), sightings=(), retained_bytes=768 * KIB)
OF_LIBRARY = replace(growth_finding(), origin=Origin.LIBRARY, library="torch")
RUN = run(replace(rank(0), steps=()))


def of(*findings: Finding) -> Findings:
    return replace(leaking()[1], findings=findings)


NONE = Settings(allowance=0)
SOME = Settings(allowance=768 * KIB)
KNOWN = tuple(Suppression(one.fingerprint, is_baseline=True) for one in (CYCLE, OF_LIBRARY))


@pytest.mark.parametrize(
    ("settings", "baseline", "states"),
    [
        (NONE, (), [LeakState.FAILS, LeakState.LIBRARY]),
        (replace(NONE, strict=True), (), [LeakState.FAILS, LeakState.FAILS]),
        (SOME, (), [LeakState.ALLOWED, LeakState.LIBRARY]),
        (replace(SOME, strict=True), (), [LeakState.FAILS, LeakState.FAILS]),
        (NONE, KNOWN, [LeakState.BASELINE, LeakState.BASELINE]),
        (replace(NONE, baseline_update=True), (), [LeakState.BASELINE, LeakState.LIBRARY]),
        (replace(NONE, ignore=("torch",), strict=True), (), [LeakState.FAILS, LeakState.IGNORED]),
        (replace(NONE, ignore=("*-*",)), KNOWN[:1], [LeakState.IGNORED, LeakState.IGNORED]),
    ],
)
def test_what_a_leak_does_to_its_test(
    settings: Settings, baseline: tuple[Suppression, ...], states: list[LeakState]
) -> None:
    leaks = judge_leaks(of(CYCLE, OF_LIBRARY, note_finding()), settings, baseline)
    assert [leak.state for leak in leaks] == states


def test_a_leak_is_reported_in_full_once_and_in_a_line_after_that() -> None:
    findings = of(CYCLE, OF_LIBRARY)
    leaks = judge_leaks(findings, replace(NONE, allowance=KIB), ())
    first = failure_message(RUN, findings, leaks, (), KIB)
    again = failure_message(RUN, findings, leaks, {"b41c07e2"}, KIB)
    assert first.splitlines()[0] == again.splitlines()[0] and "768.00 KiB" in first.splitlines()[0]
    assert "stage.py:41" in first and len(again.splitlines()) == 5
    assert again.splitlines()[3].startswith("- [b41c07e2] 768.00 KiB: ")
    assert again.splitlines()[4] == "Not counted: 1 in libraries."
    assert OF_LIBRARY.fingerprint not in first


def test_a_report_carries_plain_data() -> None:
    findings = of(CYCLE, OF_LIBRARY)
    found = judgement(RUN, findings, judge_leaks(findings, NONE, ()))
    assert judgement_from_data(json.loads(json.dumps(found.as_data()))) == found
    assert found.outcome == PhaseOutcome.FAILED and [one.bytes for one in found.left] == [
        768 * KIB,
        OF_LIBRARY.retained_bytes,
    ]
    assert found.left[0].line == "stage.py:41" and found.left[0].cut.startswith("`closure extract`")
    assert found.left[0].finding["rule"] == "tensor-cycle" and found.left[1].library == "torch"


def test_an_inconclusive_test_keeps_the_reason() -> None:
    unsure = Findings(Verdict.INCONCLUSIVE, "hidden by torch", 0)
    assert judgement(RUN, unsure, ()) == Judgement(PhaseOutcome.INCONCLUSIVE, "hidden by torch")


def test_the_call_and_the_repeats_of_a_test_are_one_judgement() -> None:
    findings = of(CYCLE)
    failed = judgement(RUN, findings, judge_leaks(findings, NONE, ()))
    both = together([Judgement(PhaseOutcome.JUDGED, seconds=1.0, processes=True), replace(failed, seconds=2.0)])
    assert (both.outcome, both.seconds, both.processes) == (PhaseOutcome.FAILED, 3.0, True)
    assert len(both.left) == 1
