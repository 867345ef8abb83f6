"""Line numbers and rule names are neither cropped nor broken at any width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import examples
from support.browser import PHONE, SMALL_PHONE, WIDE, Pages, unfold

from leakscope.findings.model import Cut, CutReference, Findings
from leakscope.report import FORMATS

LIST_AT_SIDE = 1240
"""Px of the narrowest window that has the list at the side."""
LONG = "src/pipeline_stages/activation_statistics_of_hooks.py:1234"
NAME, NUMBER = "hooks", ":1234"
CUT_OFF = """() => [...document.querySelectorAll('.whole')].filter(part => part.offsetParent).filter(part => {
    const around = part.closest('td, dd, li, figcaption, p, summary, h3').getBoundingClientRect();
    const [box, ...broken] = part.getClientRects();
    return broken.length || box.right > around.right + 1 || box.left < around.left - 1;
  }).map(part => part.parentElement.outerHTML)"""
LINES = """part => {
    const text = document.createRange();
    text.selectNodeContents(part);
    return text.getClientRects().length;
  }"""
WIDER_THAN_CELL = """() => [...document.querySelectorAll('.findings-list .place')].filter(place =>
    place.scrollWidth > place.clientWidth || place.getBoundingClientRect().width > place.closest('td').clientWidth
  ).map(place => place.outerHTML)"""


@pytest.mark.parametrize("width", [WIDE, LIST_AT_SIDE, PHONE, SMALL_PHONE])
def test_the_number_of_a_line_is_neither_cut_off_nor_broken(width: int, pages: Pages) -> None:
    opened = pages.open(_two_leaks(), width)
    assert opened.evaluate(CUT_OFF) == []
    assert opened.evaluate(WIDER_THAN_CELL) == []
    unfold(opened)
    assert opened.evaluate(CUT_OFF) == []
    for where in (".findings-list .place .whole", ".verdict .whole", ".cutbox .whole"):
        assert opened.locator(where).first.inner_text() == f"{NAME}.py{NUMBER}"


@pytest.mark.parametrize("width", [PHONE, SMALL_PHONE])
def test_the_name_of_a_rule_is_not_broken(width: int, pages: Pages) -> None:
    opened = pages.open(FORMATS["html"](*examples.inconclusive()), width)
    unfold(opened)
    name = opened.locator("td.name").first
    assert name.inner_text() == "step-growth"
    assert name.evaluate(LINES) == 1


def _two_leaks() -> str:
    found = replace(examples.growth_finding(), cut=Cut((CutReference(".seen", LONG),), 1 << 21), fingerprint="0000000")
    several = tuple(replace(found, fingerprint=f"{number:08x}") for number in range(2))
    return FORMATS["html"](examples.run(), Findings("leaks", "two", 23, several))
