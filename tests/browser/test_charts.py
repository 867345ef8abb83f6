"""Chart figures are available by pointer and keyboard without JavaScript."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.browser import PHONE, WIDE, Pages
from support.browser.recorded_pages import page

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

COMPACT = 340
"""Px of the chart's height at 1440 wide, its card included."""


def figures(point: Locator) -> Locator:
    return point.locator("text")


def shown(opened: Page) -> list[str]:
    """What the points that can be seen say."""
    return [
        str(point.get_attribute("aria-label"))
        for point in opened.locator(".plot .point").all()
        if point.locator("circle").is_visible()
    ]


def test_a_look_says_its_figures_where_the_pointer_or_the_focus_is(pages: Pages) -> None:
    opened = pages.open(page("leaking"), scripts=False)
    points = [point for point in opened.locator(".plot .point").all() if point.locator("circle").is_visible()]
    assert len(points) > 2 and not any(figures(point).is_visible() for point in points)
    points[1].hover()
    assert figures(points[1]).is_visible() and "counted" in figures(points[1]).text_content()  # type: ignore[operator]
    opened.mouse.move(0, 0)
    points[0].focus()
    assert figures(points[0]).is_visible() and not figures(points[1]).is_visible()
    opened.keyboard.press("Tab")
    assert figures(points[1]).is_visible() and not figures(points[0]).is_visible()


def test_another_group_of_ranks_is_chosen_by_pointer_and_by_key(pages: Pages) -> None:
    opened = pages.open(page("64 ranks"), scripts=False)
    first = shown(opened)
    opened.locator(".picks label").first.click()
    second = shown(opened)
    assert first and second and first != second
    opened.keyboard.press("ArrowRight")
    third = shown(opened)
    assert third != second, "the arrow keys go from one to the next"
    assert opened.locator(".beside .of").count() == opened.locator(".picks label").count() > 1
    assert sum(legend.is_visible() for legend in opened.locator(".beside .of").all()) == 1


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_a_point_lies_where_the_line_is_drawn(width: int, pages: Pages) -> None:
    opened = pages.open(page("leaking"), width=width)
    line, dot = (opened.locator(f".plot {part}").last.bounding_box() for part in (".line path", ".point circle"))
    assert line is not None and dot is not None
    assert abs(line["x"] + line["width"] - dot["x"] - dot["width"] / 2) < 4 and abs(line["y"] - dot["y"]) < 8


@pytest.mark.parametrize("name", ["leaking", "clean"])
def test_the_chart_is_compact(name: str, pages: Pages) -> None:
    opened = pages.open(page(name))
    box = opened.locator("figure.chart").bounding_box()
    assert box is not None and box["height"] <= COMPACT


def test_the_figures_of_the_points_stand_in_the_table_as_well(pages: Pages) -> None:
    opened = pages.open(page("leaking"), scripts=False)
    steps = [label.split(", ")[1].removeprefix("step ") for label in shown(opened)]
    opened.locator(".memory details summary").last.click()
    assert [
        cell.inner_text() for cell in opened.locator(".memory table").first.locator("td:first-child").all()
    ] == steps
