"""Pages are legible at every width, in both colour schemes, on paper and without JavaScript."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support import examples
from support.browser import PHONE, SMALL_PHONE, WIDE, Pages, found_by_axe, unfold
from support.browser.recorded_pages import page

from leakscope.findings.model import Cut, CutReference, Findings
from leakscope.report import FORMATS

if TYPE_CHECKING:
    from playwright.sync_api import Page

MAX_HEIGHT = 2000
"""Px of a page with one leak, at 1440 wide and with nothing unfolded."""
SCREEN = 900
"""Px of a window's height."""
CHART = 340
"""Px of the chart's height at 1440 wide, including its card."""
LIST_AT_SIDE = 1240
"""Px of the narrowest window that has the list at the side."""
A4 = {"width": 704, "height": 1016}
"""The sheet without its margins, in px."""
COLOURS = ("color-contrast", "link-in-text-block")
"""Rules of axe that depend on the colour scheme."""
BROKEN = """() => [...document.querySelectorAll('.place')].filter(place => place.getClientRects().length > 1)
    .map(place => place.textContent)"""
UNNAMED = """() => [...document.querySelectorAll('td[data-label]:not(.wrap)')].filter(cell => cell.offsetParent
    && !getComputedStyle(cell, '::before').content.includes(cell.dataset.label)).map(cell => cell.textContent)"""
OVERFLOWING = """() => [...document.querySelectorAll('.figures:has(td[data-label])')].filter(table => table.offsetParent
    && table.scrollWidth > table.parentElement.clientWidth).map(table => table.textContent.slice(0, 80))"""
OUT_OF_REACH = """() => [...document.querySelectorAll('main *')].filter(box => box.scrollWidth > box.clientWidth + 1
    && ['auto', 'scroll'].includes(getComputedStyle(box).overflowX)
    && (box.tabIndex < 0 || !box.getAttribute('role') || !box.getAttribute('aria-label'))
    ).map(box => box.outerHTML.slice(0, 120))"""
CROPPED = """() => [...document.querySelectorAll('.whole')].filter(part => part.offsetParent).filter(part => {
    const around = part.closest('td, dd, li, figcaption, p, summary, h3').getBoundingClientRect();
    const [box, ...broken] = part.getClientRects();
    return broken.length || box.right > around.right + 1 || box.left < around.left - 1;
  }).map(part => part.parentElement.outerHTML)"""
WIDER_THAN_CELL = """() => [...document.querySelectorAll('.findings-list .place')].filter(place =>
    place.scrollWidth > place.clientWidth || place.getBoundingClientRect().width > place.closest('td').clientWidth
  ).map(place => place.outerHTML)"""
OFF_THE_SHEET = """() => [...document.querySelectorAll('main *')].filter(part => part.checkVisibility()
    && part.getBoundingClientRect().right > innerWidth + 1).map(part => part.outerHTML.slice(0, 80))"""


def bottom(opened: Page, selector: str) -> float:
    return float(opened.locator(selector).first.evaluate("part => part.getBoundingClientRect().bottom"))


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("leaking", WIDE), ("fixed", WIDE), ("clean", WIDE), ("comparison", PHONE), ("snapshot", PHONE),
        ("64 ranks", PHONE),
    ],
)  # fmt: skip
def test_axe_finds_no_violation(name: str, width: int, pages: Pages) -> None:
    opened = pages.open(page(name), width)
    if name == "leaking":
        unfold(opened)
    assert found_by_axe(opened) == []
    opened.emulate_media(color_scheme="dark")
    assert found_by_axe(opened, COLOURS) == []


def test_axe_finds_a_violation(pages: Pages) -> None:
    wrong = "<h1>wrong</h1><p style='color: #999; background: #fff'>faint</p><svg role='img'></svg>"
    opened = pages.open(f"<!doctype html><html lang=en><title>wrong</title><main>{wrong}</main>", scheme="dark")
    assert [found.split(" ")[0] for found in found_by_axe(opened)] == ["color-contrast", "svg-img-alt"]
    assert [found.split(" ")[0] for found in found_by_axe(opened, COLOURS)] == ["color-contrast"]


def test_the_first_screen_has_the_line_to_edit_and_a_page_with_one_leak_is_short(pages: Pages) -> None:
    opened = pages.open(page("leaking"))
    assert bottom(opened, "article.finding .held") < SCREEN / 2
    assert bottom(opened, "article.finding .code li.begin") < SCREEN
    box = opened.locator("figure.chart").bounding_box()
    assert box is not None and box["height"] <= CHART
    height = "document.documentElement.scrollHeight"
    assert opened.evaluate(height) <= MAX_HEIGHT
    unfold(opened)
    assert opened.evaluate(height) > MAX_HEIGHT, "folded sections exist"
    assert bottom(pages.open(page("fixed")), "article.finding .code.edit") < SCREEN


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, SMALL_PHONE) for name in ("leaking", "fixed", "64 ranks", "comparison", "snapshot")] + [("clean", WIDE)],
)
def test_the_page_needs_no_horizontal_scrolling(name: str, width: int, pages: Pages) -> None:
    opened = pages.open(page(name), width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    unfold(opened)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    if width == SMALL_PHONE:
        for wrong in (BROKEN, UNNAMED, OVERFLOWING, OUT_OF_REACH):
            assert opened.evaluate(wrong) == []


def test_code_to_paste_keeps_its_lines_and_scrolls(pages: Pages) -> None:
    opened = pages.open(page("leaking"), SMALL_PHONE)
    unfold(opened)
    lines = opened.locator("details.see pre").first
    assert lines.locator("code").inner_text().count("\n") == 1
    assert lines.evaluate("pre => pre.scrollWidth > pre.clientWidth && getComputedStyle(pre).overflowX") == "auto"


@pytest.mark.parametrize("width", [WIDE, LIST_AT_SIDE, PHONE, SMALL_PHONE])
def test_a_line_number_is_neither_cropped_nor_broken(width: int, pages: Pages) -> None:
    place = "src/pipeline_stages/activation_statistics_of_hooks.py:1234"
    found = replace(examples.growth_finding(), cut=Cut((CutReference(".seen", place),), 1 << 21))
    several = tuple(replace(found, fingerprint=f"{number:08x}") for number in range(2))
    opened = pages.open(FORMATS["html"](examples.run(), Findings("leaks", "two", 23, several)), width)
    assert opened.evaluate(CROPPED) == opened.evaluate(WIDER_THAN_CELL) == []
    unfold(opened)
    assert opened.evaluate(CROPPED) == []
    for where in (".findings-list .place .whole", ".verdict .whole", ".cutbox .whole"):
        assert opened.locator(where).first.inner_text() == "hooks.py:1234"


def test_a_figure_of_the_chart_shows_at_the_pointer_and_the_focus_and_is_in_the_table(pages: Pages) -> None:
    opened = pages.open(page("leaking"), scripts=False)
    points = [point for point in opened.locator(".plot .point").all() if point.locator("circle").is_visible()]
    figures = [point.locator("text") for point in points]
    assert len(points) > 2 and not any(one.is_visible() for one in figures)
    points[1].hover()
    assert figures[1].is_visible() and "counted" in str(figures[1].text_content())
    opened.mouse.move(0, 0)
    points[0].focus()
    assert figures[0].is_visible() and not figures[1].is_visible()
    opened.keyboard.press("Tab")
    assert figures[1].is_visible() and not figures[0].is_visible()
    steps = [str(point.get_attribute("aria-label")).split(", ")[1].removeprefix("step ") for point in points]
    opened.locator(".memory details summary").last.click()
    cells = opened.locator(".memory table").first.locator("td:first-child").all()
    assert [cell.inner_text() for cell in cells] == steps


def test_a_group_of_ranks_is_chosen_by_pointer_and_by_key(pages: Pages) -> None:
    opened = pages.open(page("64 ranks"), scripts=False)

    def shown() -> list[str]:
        points = opened.locator(".plot .point").all()
        return [str(one.get_attribute("aria-label")) for one in points if one.locator("circle").is_visible()]

    first = shown()
    opened.locator(".picks label").last.click()
    second = shown()
    assert first and second and first != second
    opened.keyboard.press("ArrowLeft")
    assert shown() != second
    assert opened.locator(".beside .of").count() == opened.locator(".picks label").count() > 1
    assert sum(legend.is_visible() for legend in opened.locator(".beside .of").all()) == 1


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_a_point_lies_on_its_line(width: int, pages: Pages) -> None:
    opened = pages.open(page("leaking"), width=width)
    line, dot = (opened.locator(f".plot {part}").last.bounding_box() for part in (".line path", ".point circle"))
    assert line is not None and dot is not None
    assert abs(line["x"] + line["width"] - dot["x"] - dot["width"] / 2) < 4 and abs(line["y"] - dot["y"]) < 8


def test_a_printed_page_is_light_and_complete_and_fits_the_sheet(pages: Pages) -> None:
    printed = pages.open(page("64 ranks"), scheme="dark")
    printed.set_viewport_size(A4)
    printed.emulate_media(media="print", color_scheme="dark")
    assert printed.locator("details.section > .card").first.is_visible()
    assert all(drawing.is_visible() for drawing in printed.locator(".finding .drawing").all())
    left_out = printed.locator("details:not(.section, .finding *, [open], .filtering) > summary")
    assert left_out.count() > 0
    for summary in left_out.all():
        assert "not printed" in summary.evaluate("one => getComputedStyle(one, '::after').content")
    assert printed.locator(".copy, .filtering, .zooming").locator("visible=true").count() == 0
    style = "part => { const style = getComputedStyle(part); return [style.printColorAdjust, style.backgroundColor] }"
    assert printed.locator(".verdict").evaluate(style) == ["exact", "rgb(253, 236, 235)"]
    assert printed.locator("body").evaluate("body => getComputedStyle(body).color") == "rgb(28, 36, 48)"
    assert printed.evaluate(OFF_THE_SHEET) == []
    headings = printed.locator("h2, h3, h4, summary, figcaption")
    assert set(headings.evaluate_all("all => all.map(one => getComputedStyle(one).breakAfter)")) == {"avoid"}


def test_a_leak_takes_few_sheets(pages: Pages) -> None:
    sheets = pages.open(page("leaking")).pdf(format="A4", prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 6
