"""Can everybody read the page: with a screen reader, by keyboard, on a phone, light and dark?"""

from __future__ import annotations

import pytest
from support.browser import PHONE, WIDE, Pages, found_by_axe, unfold
from support.browser.recorded_pages import page

COLOURS = ("color-contrast", "link-in-text-block")
"""What of axe's rules a colour scheme can change."""


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", ["leaking", "clean", "64 ranks", "comparison", "snapshot"])
def test_axe_finds_nothing(name: str, width: int, pages: Pages) -> None:
    opened = pages.open(page(name), width)
    if name == "leaking":  # of all that can be folded the others have no other kind
        unfold(opened)
    assert found_by_axe(opened) == []
    opened.emulate_media(color_scheme="dark")
    assert found_by_axe(opened, COLOURS) == []


def test_axe_finds_what_is_wrong(pages: Pages) -> None:
    wrong = "<p style='color: #999; background: #fff'>faint</p><svg role='img'></svg>"
    opened = pages.open(page("clean").replace("</main>", f"{wrong}</main>"), scheme="dark")
    assert [found.split(" ")[0] for found in found_by_axe(opened)] == ["color-contrast", "svg-img-alt"]
    assert [found.split(" ")[0] for found in found_by_axe(opened, COLOURS)] == ["color-contrast"]
