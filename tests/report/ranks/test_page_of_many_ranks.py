"""The page summarizes many ranks by group and stays small with a thousand ranks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support import examples
from support.runs.many_ranks import KILLED, OUTLYING, many

from leakscope.report import FORMATS
from leakscope.report.ranks import rank_groups

MIB = 1 << 20
pytestmark = pytest.mark.process  # a page has graphs that graphviz lays out


def _page(count: int) -> str:
    return FORMATS["html"](*many(count))


@pytest.fixture(scope="module")
def thousand() -> str:
    return _page(1024)


def _squares(page: str) -> list[tuple[str, int, str]]:
    strip = page.partition('class="strip"')[2].partition("</p>")[0]
    found = re.findall(r'<i class="(\w+)" data-ranks="(\d+)" title="rank \2: [^"]+">(.)</i>', strip)
    return [(state, int(number), letter) for state, number, letter in found]


def test_a_square_for_each_rank_with_a_letter_for_what_it_did(thousand: str) -> None:
    squares = _squares(thousand)
    assert [number for _, number, _ in squares] == list(range(1024))
    letters = {state: letter for state, _, letter in squares}
    assert letters == {"leaking": "L", "well": "·", "killed": "K", "outlying": "O"}
    assert [n for state, n, _ in squares if state in ("killed", "outlying")] == [KILLED, OUTLYING]


def test_a_row_for_each_group_with_the_numbers_of_its_ranks(thousand: str) -> None:
    groups = rank_groups(*many(1024))
    rows = re.findall(r'<tr id="rank-(\d+)" data-ranks="([\d ]+)">', thousand)
    assert [(int(first), tuple(map(int, ranks.split()))) for first, ranks in rows] == [
        (group.representative, group.ranks) for group in groups
    ]


def test_only_one_of_each_group_is_drawn_and_the_page_stays_small(thousand: str) -> None:
    assert thousand.count('<svg class="timeline"') <= len(rank_groups(*many(1024)))
    assert len(_page(64).encode()) < 0.6 * MIB
    assert len(thousand.encode()) < 2 * MIB


def test_what_ranks_bring_with_them_is_escaped() -> None:
    run, findings = examples.hostile()
    ranks = tuple(replace(run.ranks[0], number=number) for number in range(12))
    page = FORMATS["html"](replace(run, ranks=ranks), findings)
    assert "<img src=x" not in page and 'class="strip"' in page
