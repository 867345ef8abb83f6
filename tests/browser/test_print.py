"""Printed pages include folded sections, keep their colours and keep headings with their content."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.browser import Pages
from support.browser.recorded_pages import page

if TYPE_CHECKING:
    from playwright.sync_api import Page

A4 = {"width": 704, "height": 1016}
"""What margins leave of the sheet, in px."""
CUT_OFF = """() => [...document.querySelectorAll('main *')].filter(part => part.checkVisibility()
    && part.getBoundingClientRect().right > innerWidth + 1).map(part => part.outerHTML.slice(0, 80))"""
HEADINGS = "h2, h3, h4, summary, figcaption"


@pytest.fixture
def printed(pages: Pages) -> Page:
    opened = pages.open(page("8 ranks"), scheme="dark")
    opened.set_viewport_size(A4)
    opened.emulate_media(media="print", color_scheme="dark")
    return opened


def test_what_is_folded_in_sections_and_findings_is_printed(printed: Page) -> None:
    assert printed.locator("details.section > .card").first.is_visible()
    for drawing in printed.locator(".finding .drawing").all():
        assert drawing.is_visible()
    left_out = printed.locator("details:not(.section, .finding *, [open], .filtering) > summary")
    assert left_out.count() > 0
    for summary in left_out.all():
        assert "not printed" in summary.evaluate("one => getComputedStyle(one, '::after').content")


def test_what_needs_a_pointer_is_not_printed(printed: Page) -> None:
    assert printed.locator(".copy, .filtering, .zooming").locator("visible=true").count() == 0


def test_it_is_printed_light_and_with_its_colours(printed: Page) -> None:
    style = "part => { const style = getComputedStyle(part); return [style.printColorAdjust, style.backgroundColor] }"
    assert printed.locator(".verdict").evaluate(style) == ["exact", "rgb(253, 236, 235)"]
    assert printed.locator("body").evaluate("body => getComputedStyle(body).color") == "rgb(28, 36, 48)"


def test_nothing_is_cut_off_at_the_edge_of_the_sheet(printed: Page) -> None:
    assert printed.evaluate(CUT_OFF) == []


def test_headings_stay_with_what_they_head(printed: Page) -> None:
    after = printed.locator(HEADINGS).evaluate_all("all => all.map(one => getComputedStyle(one).breakAfter)")
    assert set(after) == {"avoid"}


def test_a_leak_takes_few_sheets(pages: Pages) -> None:
    sheets = pages.open(page("leaking")).pdf(format="A4", prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 6
