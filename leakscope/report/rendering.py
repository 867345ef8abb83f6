"""The text, HTML and JSON output that every report shares, and the escaping of recorded text."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.segment import Segment


WIDTH = 110
"""Width without a terminal: two terminals side by side on a wide screen."""
UNLIMITED = 100_000
"""Columns of a report that is not wrapped; rich needs a number, and no line of a report is longer."""


@dataclass(frozen=True)
class Paragraph:
    """Text wrapped between words."""

    text: str
    first: str
    """Prefix of the first line."""
    rest: str
    """Prefix of the other lines."""
    most: int | None = None
    """Maximum number of lines; a longer text ends in `...`."""

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
    """A line that is truncated instead of wrapped."""

    text: str

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """One line."""
        yield from segments([cropped(self.text, options.max_width)])


Line: TypeAlias = "str | RenderableType"
"""An element of a text report: a finished line, or a rich renderable laid out at the report's width."""


def segments(lines: Iterable[str]) -> Iterator[Segment]:
    """Finished lines as rich segments."""
    from rich.segment import Segment

    for line in lines:
        yield Segment(line)
        yield Segment.line()


def short_field(name: str, text: str, most: int, indent: str = "", column: int = 9) -> Paragraph:
    """A name and, in a column of its own, a text of at most `most` lines."""
    return Paragraph(" ".join(text.splitlines()), f"{indent}{name.ljust(column)}", indent + " " * column, most)


def field_lines(name: str, text: str, indent: str = "", column: int = 9) -> Iterator[Paragraph]:
    """A name and, in a column of its own, a text."""
    yield from wrapped(text, f"{indent}{name.ljust(column)}", indent + " " * column)


def wrapped(text: str, first: str, rest: str | None = None) -> Iterator[Paragraph]:
    """One paragraph per line of `text`, prefixed by `first`, then by `rest`."""
    rest = first if rest is None else rest
    for paragraph in text.splitlines() or [""]:
        yield Paragraph(paragraph, first, rest)
        first = rest


def figures(
    rows: Iterable[Sequence[str]], justify: str, heads: Sequence[str] = (), indent: int = 0, wraps: bool = False
) -> RenderableType:
    """A table without rules and with two spaces between columns.

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
    """Positions of the columns of a table that fit a terminal.

    Columns named in `spare` are dropped in that order; the others are kept even if they do not fit.
    """
    shown, leaving = list(range(len(heads))), list(spare)
    while (
        leaving and width_of(figures([[row[at] for at in shown] for row in (heads, *rows)], "l" * len(shown))) > width
    ):
        shown.remove(heads.index(leaving.pop(0)))
    return shown


def width_of(table: RenderableType) -> int:
    """Width of a table that is not wrapped."""
    return layout_console(UNLIMITED).measure(table).maximum


def layout_console(width: int) -> Console:
    """A console that renders plain text of a fixed width, independent of environment and terminal.

    It is made anew each time: a test suite may import rich again, whose console takes no segments of the old one.
    """
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
    """Lay out elements as lines of at most `width` columns; finished lines are passed through."""
    console = layout_console(width)
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            for pieces in console.render_lines(line, pad=False):
                yield "".join(piece.text for piece in pieces).replace(_UNBROKEN, " ").rstrip()


def text_page(lines: Iterable[Line], width: int = WIDTH) -> str:
    """A text report without trailing spaces that ends with one line feed."""
    return "\n".join(line.rstrip() for line in laid_out(lines, width)).rstrip() + "\n"


def html_page(template: str, filters: Mapping[str, Callable[..., Any]] | None = None, /, **content: Any) -> str:
    """Render a template of `report/html`, escaping all values."""
    from leakscope.report.html import environment

    made = environment()
    made.filters |= filters or {}
    return made.get_template(template).render(content)


def json_text(data: Any, indent: int = 2) -> str:
    """A JSON document that ends with one line feed; NaN and Infinity raise ValueError."""
    return json.dumps(data, indent=indent, allow_nan=False) + "\n"


def cells(text: str) -> int:
    """Width on a terminal: two columns for a wide character (Chinese), none for a combining accent."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cropped(text: str, width: int) -> str:
    """The text, truncated to `width` columns with `...`."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 3).rstrip(" .") + "..."


_UNBROKEN = "\ufffe"
"""Stands for a space that is between a number and its unit while lines are broken. It is no character of Unicode,
so that `cleaned` leaves none in a text, and rich counts it as one column."""
_AMOUNT = re.compile(r"(?<=\d) (?=(?:[KMGT]i)?B\b)")


def broken(text: str, width: int) -> list[str]:
    """Wrap text between words, and within words that are too wide."""
    from rich.text import Text

    lines = Text(_AMOUNT.sub(_UNBROKEN, text)).wrap(layout_console(UNLIMITED), max(width, 1), tab_size=8)
    return [plain for line in lines if (plain := line.plain.replace(_UNBROKEN, " ").rstrip())]


T = TypeVar("T")

UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that could move a cursor, reorder a line or break XML."""


def cleaned(value: T) -> T:
    """Copy data with every character that a terminal or XML file must not contain replaced by an escape.

    Line feeds and tabs stay. Large data that is not printed is passed on unchanged: heap graphs, steps (which contain
    no text), and the rows of a rank (`run.model.ROWS`), which their reader cleans.
    """
    return _cleaned(value)  # type: ignore[no-any-return]


def _cleaned(value: Any) -> Any:
    """Returns values without such characters unchanged instead of copying them, which is nearly all of a large run."""
    if isinstance(value, str):
        return value if value.isascii() and value.isprintable() else "".join(map(_character, value))
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, (tuple, list)):
        items = [_cleaned(item) for item in value]
        return value if _are_same(items, value) else type(value)(items)
    if isinstance(value, Mapping):
        pairs = {_cleaned(key): _cleaned(item) for key, item in value.items()}
        return value if _are_same(pairs, value) and _are_same(pairs.values(), value.values()) else pairs
    kind: Any = type(value)
    was = {name: getattr(value, name) for name in _fields_to_clean(kind)}
    changed = {name: now for name, before in was.items() if (now := _cleaned(before)) is not before}
    return replace(value, **changed) if changed else value


def _are_same(now: Collection[object], before: Collection[object]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


@cache
def _fields_to_clean(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass to clean."""
    from leakscope.graph.model import HeapGraph  # numpy, which the command line does without until it reads a run
    from leakscope.run.model import ROWS, Rank, Step

    if issubclass(kind, (HeapGraph, Step)) or not is_dataclass(kind):
        return ()
    left = ROWS if kind is Rank else frozenset()
    return tuple(f.name for f in fields(kind) if f.name not in left)


def _character(character: str) -> str:
    printable = unicodedata.category(character) not in UNPRINTABLE and character not in "\ufffe\uffff"
    if printable or character in "\n\t":
        return character
    return character.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    """Collapse whitespace and line breaks into single spaces."""
    return " ".join(text.split())
