"""Can everybody read the page: with a screen reader, by keyboard, on a phone, light and dark?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.browser import PHONE, WIDE, Pages, found_by_axe
from support.browser.recorded_pages import page

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = ("leaking", "clean", "64 ranks", "snapshot")


def all_opened(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_even_in_what_is_folded(name: str, width: int, scheme: str, pages: Pages) -> None:
    opened = pages.open(page(name), width, scheme)
    all_opened(opened)
    assert found_by_axe(opened) == []
