"""axe finds no accessibility violations on the pages, at any width and colour scheme."""

from __future__ import annotations

import pytest
from support.browser import PHONE, WIDE, Pages, found_by_axe, unfold
from support.browser.recorded_pages import page

COLOURS = ("color-contrast", "link-in-text-block")
"""What of axe's rules a colour scheme can change."""


@pytest.mark.parametrize(
    ("name", "width"),
    [("leaking", WIDE), ("leaking", PHONE), ("clean", WIDE), ("comparison", PHONE), ("snapshot", PHONE)],
)
def test_axe_finds_nothing(name: str, width: int, pages: Pages) -> None:
    opened = pages.open(page(name), width)
    if name == "leaking":  # of all that can be folded the others have no other kind
        unfold(opened)
    assert found_by_axe(opened) == []
    opened.emulate_media(color_scheme="dark")
    assert found_by_axe(opened, COLOURS) == []


def test_axe_finds_nothing_at_64_ranks(pages: Pages) -> None:
    assert found_by_axe(pages.open(page("64 ranks"), PHONE, "dark")) == []


def test_axe_finds_what_is_wrong(pages: Pages) -> None:
    wrong = "<h1>wrong</h1><p style='color: #999; background: #fff'>faint</p><svg role='img'></svg>"
    opened = pages.open(f"<!doctype html><html lang=en><title>wrong</title><main>{wrong}</main>", scheme="dark")
    assert [found.split(" ")[0] for found in found_by_axe(opened)] == ["color-contrast", "svg-img-alt"]
    assert [found.split(" ")[0] for found in found_by_axe(opened, COLOURS)] == ["color-contrast"]
