"""Text reports fit the width of the terminal, including wide characters."""

from __future__ import annotations

import pytest
from support import examples

from leakscope.report.rendering import cells, laid_out, wrapped
from leakscope.report.text.page import render

CJK = "訓練/主程式之模型與資料.py:31"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", examples.ALL)
def test_the_report_is_as_wide_as_the_terminal(name: str, width: int) -> None:
    lines = [line for line in render(*examples.ALL[name](), width=width).splitlines() if not is_of_table(line)]
    assert max(map(cells, lines)) <= width
    if width < 120:
        assert max(map(cells, lines)) > width - 20, "and makes use of it"


def is_of_table(line: str) -> bool:
    """Its columns stay whole."""
    return line.startswith("rank  steps") or line[:4].strip().isdigit()


def test_a_wide_character_takes_two_columns() -> None:
    text = f"cut {CJK} together with {CJK}, {CJK * 3} and é"
    for width in range(24, 60):
        lines = list(laid_out(wrapped(text, "程 ", "  "), width))
        assert max(map(cells, lines)) <= width
        assert "".join("".join(lines).split()) == "程" + "".join(text.split()), "nothing is lost"


def test_a_number_keeps_its_unit() -> None:
    (line, other) = laid_out(wrapped("it holds 12.00 MiB of B", ""), 17)
    assert (line, other) == ("it holds", "12.00 MiB of B")
