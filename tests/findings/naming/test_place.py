"""Locations are split into file, line and function for any path."""

from __future__ import annotations

import pytest

from leakscope.findings.naming import file_at, place_of


@pytest.mark.parametrize(
    ("text", "file", "line", "function"),
    [
        ("train.py:41", "train.py", 41, ""),
        ("train.py:41 forward", "train.py", 41, "forward"),
        ("my project/train it.py:41 forward (aten::addmm)", "my project/train it.py", 41, "forward (aten::addmm)"),
        ("<torch/nn/modules/module.py>:7 __call__", "<torch/nn/modules/module.py>", 7, "__call__"),
        ("a:3 b/train.py:41 main", "a:3 b/train.py", 41, "main"),
        ("(odd) dir/train.py:41 <module>", "(odd) dir/train.py", 41, "<module>"),
        ("two\nlines.py:2 f", "two\nlines.py", 2, "f"),
    ],
)  # fmt: skip
def test_file_line_and_function(text: str, file: str, line: int, function: str) -> None:
    place = place_of(text)
    assert place == (file, line, function) and file_at(text) == file
    assert place is not None and text.startswith(place.at)


@pytest.mark.parametrize("text", ["", "train.py", ":3", "train.py:0", "train.py:x", "aten::addmm", "train.py:4x f"])
def test_no_line(text: str) -> None:
    assert place_of(text) is None and file_at(text) == ""
