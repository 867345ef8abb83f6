"""The text report prints one line for each group of ranks and names killed and outlying ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.runs.many_ranks import many

from leakscope.report.ranks import rank_groups
from leakscope.report.rendering import laid_out
from leakscope.report.text.ranks import rank_lines


def _ranks(count: int, verbose: bool = False, width: int = 110) -> list[str]:
    run, findings = many(count)
    return list(laid_out(rank_lines(run, rank_groups(run, findings), verbose), width))


def test_text_of_eight_ranks_is_the_golden_text(golden: Callable[[str, str], None]) -> None:
    golden("eight_ranks.txt", "\n".join(_ranks(8)) + "\n")


def test_a_line_for_each_group_however_many_ranks() -> None:
    assert len(_ranks(1024)) <= len(_ranks(8)) + 4


@pytest.mark.parametrize("width", [60, 80, 110, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, _ranks(64, width=width))) <= width
