"""The text report of a run with at most one leak fits on one screen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from support import SAMPLES, examples

from leakscope.findings import judge
from leakscope.findings.model import Findings
from leakscope.report.text.page import LISTED, TOLD, render
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


def test_of_many_leaks_the_first_are_told_and_the_others_have_a_line() -> None:
    run, findings = examples.leaking()
    many = tuple(replace(examples.growth_finding(), fingerprint=f"{n:08x}") for n in range(LISTED + 10))
    text = render(run, replace(findings, findings=many))
    assert text.count("<- cut here") == TOLD
    assert all(f"{n + 1}. 1.50 MiB [{n:08x}] `trainer.losses` gains" in text for n in range(TOLD, LISTED))
    assert "\nand 10 smaller leaks\n" in text and len(text.splitlines()) < TOLD * 25 + LISTED + 25
