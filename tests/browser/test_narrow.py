"""The page needs no horizontal scrolling on a phone."""

from __future__ import annotations

import pytest
from support.browser import PHONE, SMALL_PHONE, Pages, unfold
from support.browser.recorded_pages import page

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


@pytest.mark.parametrize("width", [PHONE, SMALL_PHONE])
@pytest.mark.parametrize("name", ["leaking", "8 ranks", "comparison", "snapshot"])
def test_only_what_has_a_box_of_its_own_is_wider_than_a_phone(name: str, width: int, pages: Pages) -> None:
    opened = pages.open(page(name), width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    unfold(opened)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate(BROKEN) == []
    assert opened.evaluate(UNNAMED) == []
    assert opened.evaluate(OVERFLOWING) == []
    assert opened.evaluate(OUT_OF_REACH) == []


def test_a_table_is_a_table_where_there_is_room(pages: Pages) -> None:
    opened = pages.open(page("leaking"))
    unfold(opened)
    cell = opened.locator(".figures td[data-label]").first
    assert cell.evaluate("cell => getComputedStyle(cell).display") == "table-cell"
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == "none"


@pytest.mark.parametrize("width", [PHONE, SMALL_PHONE])
def test_lines_to_write_keep_their_shape_and_scroll_by_themselves(width: int, pages: Pages) -> None:
    opened = pages.open(page("leaking"), width)
    unfold(opened)
    lines = opened.locator("details.see pre").first
    assert lines.locator("code").inner_text().count("\n") == 1  # two lines, neither broken
    assert lines.evaluate("pre => pre.scrollWidth > pre.clientWidth && getComputedStyle(pre).overflowX") == "auto"
    assert lines.evaluate("pre => pre.getBoundingClientRect().right") <= width
