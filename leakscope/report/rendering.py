"""The text, HTML and JSON output that every report shares."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.segment import Segment

WIDTH = 110
"""Columns where nothing says how many there are: what two terminals side by side have on a wide screen."""
UNLIMITED = 100_000
"""Columns of a report that is not wrapped; rich needs a number, and no line of a report is longer."""


@dataclass(frozen=True)
class Paragraph:
    """A text that is broken between words."""

    text: str
    first: str
    """What its first line begins with."""
    rest: str
    """What its other lines begin with."""
    most: int | None = None
    """Lines at most: where it is longer, its end is left out and `...` says so."""

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """At least one line."""
        width = options.max_width
        first, *others = broken(self.text, width - cells(self.first)) or [""]
        lines = [self.first + first]
        if others:  # broken again: the other lines may begin elsewhere
            remaining = self.text.expandtabs().lstrip()[len(first.lstrip()) :].lstrip()
            lines += [self.rest + line for line in broken(remaining, width - cells(self.rest))]
        if self.most is not None and len(lines) > self.most:
            lines = [*lines[: self.most - 1], cropped(f"{lines[self.most - 1]} ...", width)]
        yield from segments(lines)


@dataclass(frozen=True)
class Cropped:
    """A line that is of no use in pieces: what does not fit is left out."""

    text: str

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """One line."""
        yield from segments([cropped(self.text, options.max_width)])


Line: TypeAlias = "str | RenderableType"
"""What the parts of a text report are made of: a line as it is, or what rich sets in the width there is."""


def segments(lines: Iterable[str]) -> Iterator[Segment]:
    """Lines that are set already, as rich takes them."""
    from rich.segment import Segment

    for line in lines:
        yield Segment(line)
        yield Segment.line()


def short_field(name: str, text: str, most: int, indent: str = "", column: int = 9) -> Paragraph:
    """A name and, in its own column, what there is to say of it in so many lines."""
    return Paragraph(" ".join(text.splitlines()), f"{indent}{name.ljust(column)}", indent + " " * column, most)


def field_lines(name: str, text: str, indent: str = "", column: int = 9) -> Iterator[Paragraph]:
    """A name and, in its own column, what there is to say of it."""
    yield from wrapped(text, f"{indent}{name.ljust(column)}", indent + " " * column)


def wrapped(text: str, first: str, rest: str | None = None) -> Iterator[Paragraph]:
    """A paragraph for each line of `text`: after `first`, then after `rest`."""
    rest = first if rest is None else rest
    for paragraph in text.splitlines() or [""]:
        yield Paragraph(paragraph, first, rest)
        first = rest


def figures(
    rows: Iterable[Sequence[str]], justify: str, heads: Sequence[str] = (), indent: int = 0, wraps: bool = False
) -> RenderableType:
    """A table without rules, two spaces between its columns.

    Args:
        rows: The cells of each row.
        justify: `l` or `r` for each column.
        heads: Names of the columns; () for a table without a head.
        indent: Spaces before each line.
        wraps: Whether the last column alone is broken where there is no room for all; else all of them are.

    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(heads), header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for place, side in enumerate(justify):
        table.add_column(
            Text(heads[place]) if heads else "",
            justify="right" if side == "r" else "left",
            no_wrap=wraps and place < len(justify) - 1,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(_AMOUNT.sub(_UNBROKEN, cell)) for cell in row))
    return Padding(table, (0, 0, 0, indent), expand=False) if indent else table


def fitting(heads: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int) -> list[int]:
    """Positions of the columns of a table that so many columns of a terminal have room for.

    Those named in `spare` go in that order, the others stay even where there is no room for them.
    """
    shown, leaving = list(range(len(heads))), list(spare)
    while leaving and width_of(figures(*_chosen(heads, rows, shown))) > width:
        shown.remove(heads.index(leaving.pop(0)))
    return shown


def _chosen(
    heads: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]
) -> tuple[list[list[str]], str, list[str]]:
    return [[row[place] for place in shown] for row in rows], "l" * len(shown), [heads[place] for place in shown]


def width_of(table: RenderableType) -> int:
    """Columns that a table takes where there is room for all of it."""
    return layout_console(UNLIMITED).measure(table).maximum


@lru_cache(maxsize=8)
def layout_console(width: int) -> Console:
    """A console that renders to plain text of so many columns, whatever the environment and the terminal are."""
    from rich.console import Console

    return Console(
        file=StringIO(),
        width=width,
        height=25,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
        _environ={},
    )


def laid_out(lines: Iterable[Line], width: int = WIDTH) -> Iterator[str]:
    """All of it as lines no wider than so many columns; those that came as they are stay so."""
    console = layout_console(width)
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            for pieces in console.render_lines(line, pad=False):
                yield "".join(piece.text for piece in pieces).replace(_UNBROKEN, " ").rstrip()


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


_UNBROKEN = "\ufffe"
"""Stands for a space that is between a number and its unit while lines are broken. It is no character of Unicode,
so that `cleaned` leaves none in a text, and rich counts it as one column."""
_AMOUNT = re.compile(r"(?<=\d) (?=(?:[KMGT]i)?B\b)")


def broken(text: str, width: int) -> list[str]:
    """The text as lines of at most so many columns, broken between words, and within one that is wider."""
    from rich.text import Text

    lines = Text(_AMOUNT.sub(_UNBROKEN, text)).wrap(layout_console(UNLIMITED), max(width, 1), tab_size=8)
    return [plain for line in lines if (plain := line.plain.replace(_UNBROKEN, " ").rstrip())]
