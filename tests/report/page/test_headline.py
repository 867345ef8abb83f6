"""The headline states how the run ended before what could not be judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import examples

from leakscope.report.html.page import render
from leakscope.report.verdict_text import headline
from leakscope.run.model import Ended
from leakscope.run.rows import EndKind

BOOM = Ended(EndKind.RAISED, 1, 5, error="RuntimeError: boom", at="train.py:2 main")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (examples.leaking(), "2 distinct leaks"),
        (examples.clean(), "No leaks"),
        (examples.inconclusive(), "Inconclusive"),
        (examples.killed(), "Failed: inconclusive"),
        (examples.failed_as(Ended(EndKind.HUNG, 124, 8)), "Hung: inconclusive"),
        (examples.failed_as(Ended(EndKind.KILLED, 143, 8)), "Stopped: inconclusive"),
    ],
    ids=range(6),
)
def test_what_ended_the_run_comes_before_what_it_hides(told: tuple, said: str) -> None:  # type: ignore[type-arg]
    assert headline(*told) == said


def test_a_leak_that_is_known_is_no_news() -> None:
    run, findings = examples.clean()
    assert headline(run, replace(findings, suppressed=(examples.growth_finding(),))) == "No new leaks"
    assert headline(run, replace(findings, suppressed=(examples.note_finding(),))) == "No leaks"


def test_the_line_that_failed_is_quoted() -> None:
    run, findings = examples.failed_as(BOOM)
    kept = replace(run, sources={"train.py": ("def main():", "    explode()")})
    assert "train.py:2  explode()</code>" in render(kept, findings)
    assert "explode" not in render(replace(run, sources={}), findings)
