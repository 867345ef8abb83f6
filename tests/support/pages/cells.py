"""Cells of a notebook on a page: `In [1]: ` begins one, `   ...: ` goes on with it, all else is what it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FIRST = re.compile(r"In \[\d+\]: ")
_MORE = re.compile(r" {3,}\.\.\.: ?")


@dataclass(frozen=True)
class Cell:
    """One cell, and the output that the page shows below it."""

    source: str
    lines: tuple[str, ...]
    """As the page has it, with its prompts."""
    output: tuple[str, ...]


def cells_of(text: str) -> Iterator[Cell]:
    """The cells of a block."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _FIRST.match(line)]
    assert starts[:1] == [0], f"cells begin with `In [1]: `, not with {lines[:1]}"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        output = start + 1
        while output < end and _MORE.match(lines[output]):
            output += 1
        typed = tuple(lines[start:output])
        source = "\n".join([_FIRST.sub("", typed[0]), *(_MORE.sub("", line) for line in typed[1:])])
        shown = "\n".join(lines[output:end]).rstrip("\n")
        yield Cell(source, typed, tuple(shown.split("\n")) if shown else ())
