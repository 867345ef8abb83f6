"""Fits text into a terminal of any width and script."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

WIDTH = 110
"""Columns where nothing says how many there are: what two terminals side by side have on a wide screen."""


class Block(Protocol):
    """Some lines of the report, not yet of any width."""

    def lines(self, width: int) -> Iterator[str]:
        """Its lines, no wider than so many columns where that can be done."""
        ...


Line = str | Block
"""What the parts of the report are made of: a line as it is, or what is yet to be broken into lines."""


@dataclass(frozen=True)
class Paragraph:
    """A text that is broken between words."""

    text: str
    first: str
    """What its first line begins with."""
    rest: str
    """What its other lines begin with."""

    def lines(self, width: int) -> Iterator[str]:
        """At least one."""
        yield from _broken(self.text, width, self.first, self.rest) or [self.first]


@dataclass(frozen=True)
class Shortened:
    """A paragraph of so many lines at the most: where it is longer, its end is left out and `...` says so."""

    paragraph: Paragraph
    most: int

    def lines(self, width: int) -> Iterator[str]:
        """At least one."""
        told = list(self.paragraph.lines(width))
        yield from told[: self.most - 1]
        if len(told) > self.most:
            yield cropped(f"{told[self.most - 1]} ...", width)
        else:
            yield from told[self.most - 1 :]


@dataclass(frozen=True)
class Cropped:
    """A line that is of no use in pieces: what does not fit is left out."""

    text: str

    def lines(self, width: int) -> Iterator[str]:
        """One."""
        yield cropped(self.text, width)


def short_field(name: str, text: str, most: int, indent: str = "", column: int = 9) -> Line:
    """A name and, in its own column, what there is to say of it in so many lines."""
    text = " ".join(text.splitlines())
    return Shortened(Paragraph(text, f"{indent}{name.ljust(column)}", indent + " " * column), most)


def field_lines(name: str, text: str, indent: str = "", column: int = 9) -> Iterator[Line]:
    """A name and, in its own column, what there is to say of it."""
    yield from wrapped(text, f"{indent}{name.ljust(column)}", indent + " " * column)


def wrapped(text: str, first: str, rest: str | None = None) -> Iterator[Line]:
    """A paragraph for each line of `text`: after `first`, then after `rest`."""
    rest = first if rest is None else rest
    for paragraph in text.splitlines() or [""]:
        yield Paragraph(paragraph, first, rest)
        first = rest


def laid_out(lines: Iterable[Line], width: int = WIDTH) -> Iterator[str]:
    """All of it as lines no wider than so many columns; those that came as they are stay so."""
    for line in lines:
        yield from [line] if isinstance(line, str) else line.lines(width)


def text_page(lines: Iterable[Line], width: int = WIDTH) -> str:
    """A whole text report of so many columns, without trailing spaces and with one line feed at its end."""
    return "\n".join(line.rstrip() for line in laid_out(lines, width)).rstrip() + "\n"


def html_page(template: str, filters: Mapping[str, Callable[..., Any]] | None = None, /, **content: Any) -> str:
    """A template of `report/html`, filled in; all text is escaped."""
    from leakscope.report.html import environment

    made = environment()
    made.filters |= filters or {}
    return made.get_template(template).render(content)


def json_text(data: Any, indent: int = 2) -> str:
    """A JSON document with one line feed at its end; NaN and Infinity raise ValueError."""
    return json.dumps(data, indent=indent, allow_nan=False) + "\n"


def cells(text: str) -> int:
    """Columns that a terminal takes for it: two for a wide character, as of Chinese, none for an accent."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cropped(text: str, width: int) -> str:
    """The text, its end replaced by `...` where it is wider than so many columns."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 3).rstrip(" .") + "..."


_FILLER = "\0"
"""Stands before each wide character while lines are broken: textwrap counts characters. No text that is told has it."""
_UNBROKEN = "\1"
"""Stands for a space that is between a number and its unit."""
_AMOUNT = re.compile(r"(?<=\d) (?=(?:[KMGT]i)?B\b)")


def _broken(text: str, width: int, first: str, rest: str) -> list[str]:
    parts = [_AMOUNT.sub(_UNBROKEN, text), first, rest]
    wide = any(not part.isascii() and cells(part) != len(part) for part in parts)
    if wide:
        parts = ["".join(_FILLER + char if cells(char) > 1 else char for char in part) for part in parts]
    text, first, rest = parts
    room = width - 1 if wide else width
    lines = textwrap.wrap(text, room, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace(_FILLER, "").replace(_UNBROKEN, " ") for line in lines]
