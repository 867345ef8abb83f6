"""How does a text fit into a terminal?"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

WIDTH = 110
"""Columns, at most: what two terminals side by side have on a wide screen."""


def field_lines(name: str, text: str, indent: str = "", column: int = 9) -> Iterator[str]:
    """A name and, in its own column, what there is to say of it."""
    yield from wrapped(text, f"{indent}{name.ljust(column)}", indent + " " * column)


def wrapped(text: str, first: str, rest: str | None = None) -> Iterator[str]:
    """Lines of `text` no wider than the page, after `first`, then after `rest`."""
    rest = first if rest is None else rest
    for paragraph in text.splitlines() or [""]:
        wrapped = textwrap.wrap(paragraph, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
        yield from wrapped or [first]
        first = rest
