"""Which file, line and function does `my project/train it.py:41 forward (aten::addmm)` say?"""

from __future__ import annotations

import re
from typing import NamedTuple

_PLACE = re.compile(r"(.+):([0-9]{1,9})(?: (.*))?", re.DOTALL)
"""The last number between a colon and a space or the end: a path may have such, what follows the line has not."""


class Place(NamedTuple):
    """A line of a source file, and what stood there."""

    file: str
    line: int
    """1 or more."""
    function: str
    """`forward (aten::addmm)`; "" where only the line is told."""

    @property
    def at(self) -> str:
        """`train.py:41`."""
        return f"{self.file}:{self.line}"


def place_of(text: str) -> Place | None:
    """What a place says; None where it names no line."""
    match = _PLACE.fullmatch(text)
    if match is None or int(match[2]) < 1:
        return None
    return Place(match[1], int(match[2]), match[3] or "")


def file_at(text: str) -> str:
    """The file of a place, "" where it names no line."""
    place = place_of(text)
    return "" if place is None else place.file
