"""The text report prints one line for each group of ranks and names killed and outlying ranks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support import examples
from support.runs.many_ranks import KILLED, OUTLYING, many

from leakscope.report.ranks import rank_groups
from leakscope.report.rendering import laid_out
from leakscope.report.text.page import render
from leakscope.report.text.ranks import rank_lines


def _ranks(count: int, verbose: bool = False, width: int = 110) -> list[str]:
    run, findings = many(count)
    return list(laid_out(rank_lines(run, findings, rank_groups(run, findings), verbose), width))


def test_text_of_eight_ranks_is_the_golden_text(golden: Callable[[str, str], None]) -> None:
    golden("eight_ranks.txt", "\n".join(_ranks(8)) + "\n")


def test_a_line_for_each_group_however_many_ranks() -> None:
    assert len(_ranks(1024)) <= len(_ranks(8)) + 4


def test_the_killed_and_the_outlying_rank_are_named() -> None:
    text = "\n".join(_ranks(1024))
    assert f"! rank {KILLED} killed by SIGKILL after 5 steps" in text
    assert f"! rank {OUTLYING} holds 900.00 MiB in tensors" in text


@pytest.mark.parametrize("width", [60, 80, 110, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, _ranks(64, width=width))) <= width


def test_all_ranks_are_told_where_all_is_asked_for() -> None:
    rows = [line for line in _ranks(64, verbose=True) if re.match(r" *\d+ +\d+ ", line)]
    assert [int(row.split()[0]) for row in rows] == list(range(64))


def test_a_note_of_many_ranks_stands_there_once() -> None:
    text = render(*many(256))
    assert text.count("no look of the first step") == 1


def test_one_rank_is_no_group() -> None:
    run, findings = examples.clean()
    text = render(examples.run(run.ranks[0]), findings)
    assert "ranks" not in text.partition("Ranks\n")[2]
