"""Growth of a series of bytes over heap snapshots: on both sides of each threshold."""

from __future__ import annotations

import pytest

from leakscope.findings.growth import Series, series

ITEM = 1 << 20


def _snapshot_steps(steps: int) -> tuple[int, ...]:
    """The judged snapshots of a `--steps` run."""
    return tuple(sorted({3, 5, 7, 9, steps - 1, steps}))


def _every(period: int, first: int, steps: int) -> Series:
    """One item every `period` steps, from step `first` on."""
    steps_seen = _snapshot_steps(steps)
    return Series(steps_seen, tuple(ITEM * len(range(first, snapshot + 1, period)) for snapshot in steps_seen))


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8, 10])
def test_an_item_every_few_steps_is_certain_once_three_have_come(period: int) -> None:
    for steps in (12, 13, 14, 15, 16, 20, 28, 29, 40, 41):
        for first in range(1, period + 1):
            line = _every(period, first, steps)
            came = (line.bytes[-1] - line.bytes[0]) // ITEM
            rises = sum(b > a for a, b in zip(line.bytes, line.bytes[1:], strict=False))
            if came >= 4 and rises >= 2 and steps - line.steps[0] <= 40:
                assert line.grows, (steps, first)
                assert line.has_enough_rises, (steps, first)
                assert 0.6 * ITEM / period < line.per_step < 1.6 * ITEM / period


@pytest.mark.parametrize(
    ("sizes", "certain"),
    [
        ((1, 2, 3, 4, 5, 5), True),  # a pause of one step, where two lie between the looks before it
        ((1, 3, 5, 6, 7, 7), True),  # the slowest stretch has half of the fastest's pace
        ((1, 6, 9, 10, 11, 11), False),  # it levels off
        ((1, 2, 3, 4, 4, 4), False),  # three steps at rest
        ((1, 2, 3, 4, 5, 6), True),
    ],
)
def test_a_pause_at_the_end_is_none_where_a_longer_one_would_not_have_been_seen(
    sizes: tuple[int, ...], certain: bool
) -> None:
    line = Series((3, 5, 7, 9, 11, 12), tuple(size * ITEM for size in sizes))
    assert (line.grew_lately and line.has_enough_rises) is certain


def test_two_items_in_step_with_a_period_are_too_few() -> None:
    two = Series((3, 5, 7, 9, 27, 28), (0, 0, 0, ITEM, 2 * ITEM, 2 * ITEM))
    three = Series((3, 5, 7, 9, 27, 28), (0, 0, 0, ITEM, 3 * ITEM, 3 * ITEM))
    assert not Series(two.steps[:-1], two.bytes[:-1]).pause_at_end
    assert min(times for _, times in two._periods) == 2
    assert min(times for _, times in three._periods) == 3


@pytest.mark.parametrize(("second", "fits"), [(0.8, True), (0.79, False)])
def test_items_of_a_period_are_alike(second: float, fits: bool) -> None:
    line = Series((1, 3, 5, 7, 9, 11), (0, 0, 1000, 1000, 1000 + round(1000 * second), 1000 + round(1000 * second)))
    assert bool(line._periods) is fits


@pytest.mark.parametrize(("last", "reported"), [(43, True), (44, False)])
def test_a_period_is_looked_for_within_forty_steps(last: int, reported: bool) -> None:
    line = Series((3, 5, 7, 9, last), (0, 0, 0, ITEM, ITEM * 4))
    assert bool(line._periods) is reported


@pytest.mark.parametrize(("slow", "steady"), [(25, True), (24, False)])
def test_the_slowest_stretch_of_a_steady_growth_has_a_quarter_of_the_fastest(slow: int, steady: bool) -> None:
    assert Series((1, 2, 3, 4), (0, 100, 100 + slow, 200 + slow)).steady is steady


@pytest.mark.parametrize(
    ("sizes", "grows", "certain"),
    [
        ((1, 2, 3), True, False),
        ((1, 2, 2), False, False),
        ((3, 2, 1), False, False),
        ((1, 3, 2, 4), False, False),
        ((0, 0, 0), False, False),
        ((1, 1, 2, 3, 3, 4), True, True),  # an evaluation every three steps
        ((1, 1, 2, 3), True, False),
        ((0, 0, 1, 2, 3), True, True),  # begins late and goes on
        ((1, 2, 3, 4, 4, 4), False, True),  # a cache that is full
        ((1, 1, 2, 2, 2), False, False),
        ((1, 2, 3, 2, 3, 4), False, True),
    ],
)
def test_what_grows_every_few_steps_grows_and_a_plateau_does_not(
    sizes: tuple[int, ...], grows: bool, certain: bool
) -> None:
    line = series((3, 5, 7, 9, 11, 12)[: len(sizes)], dict(zip((3, 5, 7, 9, 11, 12), sizes, strict=False)))
    assert line.grows is grows
    assert not grows or len(sizes) == 3 or line.has_enough_rises is certain


def test_bytes_a_step_follow_the_steps_between_snapshots() -> None:
    assert series((3, 5, 9, 10), {3: 300, 5: 500, 9: 900, 10: 1000}).per_step == 100
    assert series((3, 5), {}).per_step == 0


@pytest.mark.parametrize(("last", "leaks"), [(60, True), (59, False)])
def test_a_leak_has_grown_by_its_threshold_at_each_step(last: int, leaks: bool) -> None:
    line = Series((3, 5, 7, 9), (0, 20, 40, last))
    assert (line.per_step, line.floor(10), line.is_leak(10)) == (10, 60, leaks)
