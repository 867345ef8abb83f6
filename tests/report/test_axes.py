"""Do a plot's ticks and lines stand where they should?"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from leakscope.report.html.axes import Axes, area, axes_around, line, plot, thinned, upright


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-1.7, 35.3, ["0", "10", "20", "30"]),
        (0.0, 1.05, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-1.2, 1.2, ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),  # noqa: RUF001 - a minus sign
        (100.0, 112.0, ["100", "102", "104", "106", "108", "110", "112"]),
        (0.0, 0.0131, ["0.0000", "0.0025", "0.0050", "0.0075", "0.0100", "0.0125"]),
    ],
)
def test_values_are_marked_at_round_numbers(low: float, high: float, said: list[str]) -> None:
    assert [text for _, text in Axes(1, 2, low, high).ticks_up()] == said


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (1, 12, [2, 4, 6, 8, 10, 12]),
        (3, 12, [*range(3, 13)]),
        (1, 2, [1, 2]),
        (1, 1000, [*range(200, 1001, 200)]),
        (1, 26, [5, 10, 15, 20, 25]),
        (999_990_000, 1_000_000_000, [*range(999_990_000, 1_000_000_001, 2500)]),
    ],
)
def test_steps_are_marked_at_whole_numbers_that_find_room(first: int, last: int, said: list[int]) -> None:
    axes = Axes(first, last, 0, 1)
    assert [text for _, text in axes.ticks_across()] == [str(step) for step in said]
    assert [step for step, _ in axes.ticks_across()] == said


def test_all_points_find_room() -> None:
    points = [(3, 5.0), (1, -4.0), (7, 1.0)]
    axes = axes_around(points)
    assert (axes.first, axes.last) == (1, 7) and axes.low < -4 and axes.high > 5
    assert axes.x(1) == pytest.approx(axes.left) and axes.x(7) == pytest.approx(400.4)
    assert axes.y(axes.low) == pytest.approx(148.9) and axes.y(axes.high) == pytest.approx(10.8)
    assert axes_around([(1, 2.0), (2, 4.0)], from_zero=True).low == 0


@pytest.mark.parametrize("from_zero", [False, True])
def test_of_points_that_are_all_the_same_there_is_a_plot_too(from_zero: bool) -> None:
    axes = axes_around([(4, 0.0), (4, 0.0)], from_zero)
    assert axes.last > axes.first and axes.high > axes.low
    assert "0" in [text.rstrip("0").rstrip(".") or "0" for _, text in axes.ticks_up()]
    ElementTree.fromstring(plot(axes, "growth", above=[line(axes, [(4, 0.0)], 1)]))


def test_a_line_goes_through_its_points() -> None:
    axes = Axes(0, 10, 0.0, 100.0)
    drawn = line(axes, [(0, 0.0), (5, 50.0), (10, 100.0)], 3)
    middle = (axes.left + 400.4) / 2
    assert f'd="M{axes.left:.1f},148.9 {middle:.1f},{(148.9 + 10.8) / 2:.1f} 400.4,10.8"' in drawn
    assert "var(--series-3)" in drawn and "dasharray" not in drawn
    assert "dasharray" in line(axes, [(0, 0.0), (1, 1.0)], 3, dashed=True) and line(axes, [], 3) == ""


def test_an_area_comes_back_along_its_lower_line() -> None:
    axes = Axes(0, 1, 0.0, 1.0)
    left = f"{axes.left:.1f}"
    drawn = area(axes, [(0, 0.0), (1, 0.0)], [(0, 1.0), (1, 1.0)], 2)
    assert f'd="M{left},10.8 400.4,10.8 400.4,148.9 {left},148.9Z"' in drawn


def test_the_plot_is_one_svg_whose_texts_are_escaped() -> None:
    axes = Axes(1, 3, 0.0, 1.0)
    drawn = plot(axes, "<b>", below=["<g/>"], above=[upright(axes, 2, 3)])
    assert "&lt;b&gt;" in drawn and ElementTree.fromstring(drawn).tag.endswith("svg")
    assert drawn.index("<g/>") < drawn.index('class="grid"') < drawn.index('class="upright"')


def test_of_many_points_those_that_stand_out_are_drawn() -> None:
    points = [(n, float(n % 7)) for n in range(100_000)]
    points[54_321] = (54_321, 1e6)
    points[12_345] = (12_345, -1e6)
    kept = thinned(points)
    assert len(kept) < 2000 and {points[54_321], points[12_345], points[0], points[-1]} <= set(kept)
    assert kept == sorted(kept) and thinned(points[:1000]) == points[:1000]
    assert len(re.findall(",", line(axes_around(points), points, 1))) == len(kept)
