"""The first screen names the line to edit and what that frees, and the unopened page is short."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.browser import PHONE, WIDE, Pages
from support.browser.recorded_pages import page

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOST = 2000
"""Px of a page with one leak, at 1440 wide and with nothing opened."""
SCREEN = 900
"""Px of a window's height."""
OPEN_ALL = "document.querySelectorAll('details').forEach(part => { part.open = true; })"


def height(opened: Page) -> int:
    return int(opened.evaluate("document.documentElement.scrollHeight"))


def bottom(opened: Page, selector: str) -> float:
    return float(opened.locator(selector).first.evaluate("part => part.getBoundingClientRect().bottom"))


def test_a_page_with_one_leak_is_short(pages: Pages) -> None:
    opened = pages.open(page("leaking"))
    assert height(opened) <= MOST
    opened.evaluate(OPEN_ALL)
    assert height(opened) > MOST, "what is folded is there"


def test_the_first_screen_names_the_line_to_edit_and_what_that_frees(pages: Pages) -> None:
    opened = pages.open(page("leaking"))
    assert bottom(opened, "article.finding .held") < SCREEN / 2
    assert bottom(opened, "article.finding .code.edit") < SCREEN
    assert bottom(opened, "article.finding .code li.begin") < SCREEN
    said = opened.locator("article.finding").first.inner_text().replace("\xa0", " ")
    for words in ("frees 72.00 MiB", "measured: 72.00 of 72.00 MiB", "+ del collect"):
        assert words in said, words


@pytest.mark.parametrize("name", ["leaking", "64 ranks"])
def test_the_hops_between_are_there_once_opened(name: str, pages: Pages) -> None:
    opened = pages.open(page(name), scripts=False)
    between = opened.locator("article.finding .between").first
    hop = between.locator("[data-hop]").first
    assert not hop.is_visible()
    between.locator("summary").click()
    assert hop.is_visible()


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", ["leaking", "clean", "64 ranks"])
def test_nothing_stands_out_of_the_page(name: str, width: int, pages: Pages) -> None:
    opened = pages.open(page(name), width=width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.evaluate(OPEN_ALL)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
