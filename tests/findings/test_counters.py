"""The trend of the counters of the steps: growth that goes on, and not what comes and goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.examples import MIB
from support.heap_text import heap_from

from leakscope.findings.counters import _stretches, counted_rate, is_steady, rate_at_end, rose_each_step, step_times
from leakscope.run.model import Collection, Ended, HeapSnapshot, Rank, Step
from leakscope.run.rows import EndKind, LifetimesUnjudged, Occasion


def _rank(levels: list[float], snapshot_steps: tuple[int, ...] = ()) -> Rank:
    """Steps at whose ends so many MiB are counted."""
    steps = tuple(Step(k, 0.1, round(level * MIB), None) for k, level in enumerate(levels, 1))
    snapshots = tuple(HeapSnapshot(k, Occasion.STEP, heap_from(""), None, 0) for k in snapshot_steps)
    return Rank(0, steps, snapshots, Ended(EndKind.FINISHED, 0, len(steps)))


@given(taken=st.lists(st.booleans(), min_size=6, max_size=12), snapshot_steps=st.sets(st.integers(3, 10), max_size=4))
def test_what_a_few_steps_take_and_let_go_of_is_no_growth(taken: list[bool], snapshot_steps: set[int]) -> None:
    """As threads do that come and go, on a busy machine: 4.37 MiB each."""
    half = len(taken) // 2
    assume(any(taken[:half]))
    rank = _rank(
        [94, 98, *(102.5 if there else 98.13 for there in taken)], snapshot_steps=tuple(sorted(snapshot_steps))
    )
    for rate in (counted_rate(rank, 2), rate_at_end(rank, 2)):
        assert rate is not None
        assert rate <= 0


@given(
    each=st.floats(0.5, 64), steps=st.integers(8, 60), noise=st.lists(st.floats(-0.1, 0.1), min_size=60, max_size=60)
)
def test_a_growth_that_goes_on_is_told_of_however_few_steps_there_are(
    each: float, steps: int, noise: list[float]
) -> None:
    rank = _rank([100 + each * (k + noise[k]) for k in range(steps)], snapshot_steps=(3, 5))
    rate = rate_at_end(rank, 2)
    assert rate is not None
    assert 0.5 * each * MIB < rate < 1.5 * each * MIB


WATCHED = LifetimesUnjudged(step=0, why="")


def _watched(levels: list[float], *steps: int, collected: int = 0) -> Rank:
    """The same, some of the steps watched storage by storage, and a full collection in one."""
    rank = _rank(levels)
    collection = Collection(2, 0.01, 100, MIB)
    return replace(
        rank,
        steps=tuple(replace(s, collections=(collection,)) if s.number == collected else s for s in rank.steps),
        lifetimes=tuple(replace(WATCHED, step=step) for step in steps),
    )


def test_what_a_watched_step_takes_for_a_while_hides_no_growth() -> None:
    """A leak of 0.25 MiB a step; the watched pair takes 3.8 MiB, which the step after it releases."""
    levels = [100 + 0.25 * k for k in range(1, 15)]
    levels[3] += 3.8
    levels[4] += 3.8
    assert counted_rate(_watched(levels, 5), 2) == 0.25 * MIB
    assert rate_at_end(_watched(levels, 5), 2) == 0.25 * MIB
    assert counted_rate(_rank(levels), 2) == 0  # of somebody else it is
    levels[4:] = [level + 100 for level in levels[4:]]  # what the watched step itself takes for good
    assert rate_at_end(_watched(levels, 5), 2) == 0.25 * MIB


def test_the_garbage_of_the_start_hides_no_growth() -> None:
    levels = [100 + 0.25 * k + (4 if k < 7 else 0) for k in range(1, 15)]
    for rate in (counted_rate, rate_at_end):
        assert rate(_watched(levels, collected=7), 2) == 0.25 * MIB
        assert rate(_watched(levels), 2) != 0.25 * MIB


@pytest.mark.parametrize("collected", [9, 10])
def test_a_collection_near_the_end_hides_no_growth(collected: int) -> None:
    """Six levels are left after the collection, or five, which are too few."""
    rank = _watched([100.0 + k for k in range(14)], collected=collected)
    assert counted_rate(rank, 2) == rate_at_end(rank, 2) == MIB


@pytest.mark.parametrize(("steps", "reported"), [(5, False), (6, True)])
def test_three_rises_after_warmup_tell_a_rate(steps: int, reported: bool) -> None:
    rank = _rank([100 + k for k in range(steps)])
    assert (counted_rate(rank, 2) is not None) is reported


@pytest.mark.parametrize(("undisturbed", "rate"), [(6, 1.0), (5, 3.0)])
def test_looked_at_steps_are_left_out_where_six_others_are_left(undisturbed: int, rate: float) -> None:
    """Those after a heap snapshot rise by 5 MiB more."""
    snapshot_steps = tuple(range(3, 3 + 7))
    rises = [0, 0, 0, *(5 for _ in snapshot_steps), *(1 for _ in range(undisturbed))]
    rank = _rank([100 + sum(rises[: k + 1]) for k in range(len(rises))], snapshot_steps=snapshot_steps)
    counted = counted_rate(rank, 2)
    assert counted is not None
    assert (counted == MIB) is (rate == 1.0)


@pytest.mark.parametrize(("large", "moved"), [(2, False), (3, True)])
def test_two_of_five_stretches_do_not_move_the_rate(large: int, moved: bool) -> None:
    rises = [20 if k % 3 == 0 and k // 3 < large else 1 for k in range(15)]
    rank = _rank([100 + sum(rises[:k]) for k in range(16)])
    assert (counted_rate(rank, 0) != MIB) is moved


@pytest.mark.parametrize(("slow", "steady"), [(0.25, True), (0.24, False)])
def test_each_stretch_of_a_steady_growth_has_a_quarter_of_the_median(slow: float, steady: bool) -> None:
    assert is_steady([*(slow for _ in range(3)), *(1.0 for _ in range(12))]) is steady


@pytest.mark.parametrize(("step", "rate"), [(0.52, 1.0), (0.4, 0.4)])
def test_levels_of_few_steps_have_risen_by_half_of_the_rate(step: float, rate: float) -> None:
    """Rises of 1 MiB at the steps that are left, falls at the others, which follow heap snapshots."""
    levels, size = [100.0], 100.0
    snapshot_steps = tuple(range(2, 13, 2))
    for number in range(2, 15):
        size += 1.0 if number % 2 == 0 else 2 * step - 1.0
        levels.append(size)
    counted = counted_rate(_rank(levels, snapshot_steps=snapshot_steps), 0)
    assert counted is not None
    assert abs(counted / MIB - rate) < 0.1


@pytest.mark.parametrize(("rising", "each"), [(8, True), (7, True), (6, False)])
def test_a_growth_at_each_step_rises_in_three_of_four(rising: int, each: bool) -> None:
    rises = [1.0 if k < rising else 0.0 for k in range(9)]
    levels = [100 + sum(rises[:k]) for k in range(10)]
    assert rose_each_step(_rank(levels), 1, 10, MIB) is each
    assert not rose_each_step(_rank(levels), 1, 10, 2.1 * MIB)


@pytest.mark.parametrize(("last", "reported"), [(1.25, True), (1.24, False)])
def test_steps_that_take_a_quarter_longer_are_slower(last: float, reported: bool) -> None:
    rank = _rank([100.0] * 40)
    slower = replace(rank, steps=tuple(replace(s, seconds=last if s.number > 20 else 1.0) for s in rank.steps))
    assert step_times(slower, 2) == ((1.0, last) if reported else None)


def test_the_last_step_asked_about_is_one_of_the_steps() -> None:
    """Six steps, of which the last three rise: half of them, and without the last fewer."""
    rank = _rank([100, 100, 101, 102, 103])
    assert rose_each_step(rank, 1, 5, MIB)
    assert not rose_each_step(rank, 1, 4, MIB)


@given(st.lists(st.integers(-MIB, MIB), max_size=60))
def test_stretches_are_at_most_five_of_three_steps_or_more(rises: list[int]) -> None:
    stretches = _stretches(rises)
    if len(rises) < 9:
        assert stretches == (rises if len(rises) >= 3 else [])
    else:
        assert len(stretches) == min(5, len(rises) // 3)
        assert min(rises) <= min(stretches) <= max(stretches) <= max(rises)
