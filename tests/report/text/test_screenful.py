"""The text report of a run with at most one leak fits on one screen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from support import SAMPLES, examples

from leakscope.findings import judge
from leakscope.findings.model import Cut, CutReference, Findings, Suggestion
from leakscope.report.finding_text import SUGGESTION
from leakscope.report.text.page import LEAST_IN_TEST, LISTED, TOLD, render, render_in_test
from leakscope.run.model import Run
from leakscope.run.reader import read_run

CLEAN, LEAKING = 25, 40
"""Lines at most, of a clean run, and of one with one leak."""


@cache
def recorded(name: str) -> tuple[Run, Findings]:
    run = read_run(SAMPLES / "p2p_pipeline" / name)
    return run, judge(run)


@pytest.mark.parametrize("name", ["none", "engine"])
def test_a_clean_run_is_half_a_screen(name: str) -> None:
    for width in (80, 110):
        assert len(render(*recorded(name), width=width, page="run/report.html").splitlines()) <= CLEAN


@pytest.mark.parametrize("name", ["stage-backward-cycle", "param-group-cycle"])
def test_a_run_with_one_leak_is_a_screen(name: str) -> None:
    run, findings = recorded(name)
    text = render(replace(run, folder="leakscope_runs/train_20260101_120000"), findings)
    assert len(text.splitlines()) <= LEAKING
    assert len(render(run, findings, verbose=True).splitlines()) > 2 * LEAKING


def test_it_names_the_line_what_cutting_frees_and_that_it_was_measured() -> None:
    text = render(*recorded("stage-backward-cycle"))
    for said in (
        " holds 222 | def collect(output: Any, grad: Any) -> None:",
        "> edit 230 | collect(outputs, grads)",
        "measured 72.00 of 72.00 MiB",
        f"   {SUGGESTION} insert after train.py:230\n             + del collect\n",
        "↓ closure collect   <- cut here\n",
        "(6 hops hidden)\n   ╰→ tensor memory",
    ):
        assert said in text
    assert " ".join(text.split()).endswith("at train.py:230, frees 72.00 MiB (exit status 23)")


@pytest.mark.parametrize("more", [0, 1, 60])
def test_a_failing_test_counts_a_long_stretch_of_the_trace(more: int) -> None:
    finding = examples.growth_finding()
    between = LEAST_IN_TEST - 1 + more
    far = (replace(finding.trace[-2], reference=f".far_{k}") for k in range(between))
    trace = (*finding.trace[: (finding.cut_position or 0) + 2], *far, finding.trace[-1])
    run, findings = examples.leaking()
    text = render_in_test(run, replace(findings, findings=(replace(finding, trace=trace),)))
    assert (f"   │    ({between} hops hidden)\n   ╰→ " in text) == (more > 0)
    assert ("↓ .far_3\n" in text) == (more == 0)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a(b)", "a(b.item())", "replace train.py:12\n             + a(b.item())\n"),
        ("a(b)", "a(b)\ndel b", "insert after train.py:12\n             + del b\n"),
        ("a(b)", "", "remove train.py:12\n             - a(b)\n"),
    ],
)
def test_an_edit_says_what_becomes_of_the_line(before: str, after: str, said: str) -> None:
    run, findings = examples.leaking()
    edited = replace(examples.growth_finding(), suggestion=Suggestion("train.py:12", before, after))
    assert f"   {SUGGESTION} {said}" in render(run, replace(findings, findings=(edited,)))


def test_of_many_leaks_the_first_are_told_and_the_others_have_a_line() -> None:
    run, findings = examples.leaking()
    many = tuple(replace(examples.growth_finding(), fingerprint=f"{n:08x}") for n in range(LISTED + 10))
    text = render(run, replace(findings, findings=many))
    assert text.count("<- cut here") == TOLD
    assert all(f"{n + 1}. 1.50 MiB [{n:08x}] `trainer.losses` gains" in text for n in range(TOLD, LISTED))
    assert "\nand 10 smaller leaks\n" in text and len(text.splitlines()) < TOLD * 25 + LISTED + 25


def test_what_is_to_be_cut_is_named_where_the_trace_does_not_show_it() -> None:
    run, findings = examples.leaking()
    unseen = Cut((CutReference(".losses", "train.py:12", "self.losses in fit()"),), 8)
    told = render(run, replace(findings, findings=(replace(examples.growth_finding(), cut=unseen),)))
    assert "   Cut:      `self.losses in fit()` at train.py:12: frees 8 B" in told


def test_what_went_wrong_is_told_whole() -> None:
    killed = render(*examples.killed())
    assert "! rank 1 killed by SIGKILL after 5 steps\n    log: logs/rank_1.log" in killed
    run, findings = examples.leaking()
    assert "Suppressed" in render(run, replace(findings, suppressed=findings.findings[:1]))
