"""Heap snapshots are scheduled within the time budget, with enough early ones for a verdict."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leakscope.recorder.steps.policy import FIRST_SNAPSHOTS, Schedule

STEP_S = 0.05
FIRST = [3, 5, 7, 9]
BUDGET = 0.02


def _looks(
    seconds: float, steps: int = 1000, counted: Callable[[int], int] = lambda step: 50 << 20, step_s: float = STEP_S
) -> list[tuple[int, float]]:
    """(step, seconds since the start) of each look of an open-ended run in which one takes so many seconds."""
    schedule, taken, now = Schedule(warmup=2, steps=None, budget=BUDGET), [], 0.0
    for step in range(1, steps + 1):
        now += step_s
        schedule.counted = counted(step)
        if schedule.due(step, now):
            now += seconds
            schedule.attempted(step)
            schedule.taken(seconds, seconds)
            taken.append((step, now))
    return taken


def _steps(looks: list[tuple[int, float]]) -> list[int]:
    return [step for step, _ in looks]


@pytest.mark.parametrize("seconds", [0.05, 0.15, 0.5, 2.0, 10.0])
def test_a_long_run_stays_within_its_budget(seconds: float) -> None:
    hours = 3
    looks = _looks(seconds, steps=round(hours * 3600 / 1.0), step_s=1.0)
    first = sum(seconds for _, now in looks if now < 300.0)
    assert first <= max(4.0 + 0.2 * 300, BUDGET * 300 + seconds)
    assert len(looks) * seconds <= BUDGET * hours * 3600


def test_looks_of_any_cost_are_taken_where_the_end_was_asked_for() -> None:
    schedule = Schedule(warmup=2, steps=12, budget=BUDGET)
    due = []
    for step in range(1, 13):
        if schedule.due(step, 0.0):
            schedule.attempted(step)
            schedule.taken(100.0, 100.0)
            due.append(step)
    assert due == [*FIRST, 11]


def test_first_looks_are_taken_again_after_a_handover() -> None:
    schedule = Schedule(warmup=2, steps=None, budget=BUDGET)
    for step in FIRST:
        schedule.attempted(step)
        schedule.taken(0.01, 0.01)
    schedule.restart(20)
    due = []
    for step in range(20, 40):
        if schedule.due(step, 0.0):
            schedule.attempted(step)
            schedule.taken(0.01, 0.01)
            due.append(step)
    assert due == [20 + 2 + first for first in FIRST_SNAPSHOTS]


def test_risen_memory_calls_for_looks_that_the_budget_would_not_allow() -> None:
    """A leak once in ten steps, in a run too short for 2%."""

    def looks(counted: Callable[[int], int], seconds: float = 0.2) -> list[int]:
        return _steps(_looks(seconds, 200, counted, step_s=0.01))

    assert looks(lambda step: 50 << 20) == FIRST
    assert looks(lambda step: (50 << 20) + step * 1000) == FIRST
    rising = looks(lambda step: (50 + step // 10) << 20)
    assert rising == [*FIRST, 13, 21, 31, 41, 53, 68]
    assert looks(lambda step: (50 + step // 10) << 20, seconds=2.0) == [3, 5], "not at any price"
    assert looks(lambda step: (50 + step % 7 + step // 100) << 20)[:6] == [*FIRST, 14, 21], (
        "what varies is looked at as it comes"
    )
    assert looks(lambda step: (50 << 30) + (step // 10 << 20)) == FIRST, "a thousandth is no rise"


def test_first_looks_do_not_hang_on_what_else_the_machine_does() -> None:
    """Each takes ten times as long by the clock as by the processor."""
    schedule, due = Schedule(warmup=2, steps=None, budget=BUDGET), []
    for step in range(1, 200):
        if schedule.due(step, step * STEP_S):
            schedule.attempted(step)
            schedule.taken(2.0, 0.2)
            due.append(step)
    assert due == FIRST, "but later ones keep to the clock, as the run does"
    assert schedule.due(1000, 600.0) and not schedule.due(1000, 400.0)
