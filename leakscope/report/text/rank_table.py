"""What did each group of ranks hold, in a line of figures?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakscope.report.per_rank import RankStory
from leakscope.report.rank_figures import COLUMNS, columns_of
from leakscope.report.text.lines import Line, Paragraph, cells
from leakscope.report.wording import listed_numbers

_LEAST = 5
"""The first columns, of which none is left out for want of room."""
_LISTED = 4
"""Rows of numbers, chosen, that the first cell lists whole."""
_COUNTED = 4
"""Ranks, chosen, from which on a row says how many it is of."""


@dataclass(frozen=True)
class Row:
    """Ranks that are told together."""

    stories: tuple[RankStory, ...]
    leaks: tuple[int, ...] = ()
    """Numbers of their leaks in the report."""


def table(rows: Sequence[Row], whole: bool) -> Iterator[Line]:
    """A line for each row, its figures from the smallest to the largest where its ranks differ.

    Columns in which no rank has anything are left out, but not of the `whole` table.
    """
    shown = columns_of([story for row in rows for story in row.stories], whole)
    several = any(len(row.stories) > 1 for row in rows)
    with_leaks = len(rows) > 1 and any(row.leaks for row in rows)
    heads = ("ranks" if several else "rank", *(["leak"] if with_leaks else []), *(column.head for column in shown))
    lines = []
    for row in rows:
        leaks = [listed_numbers(row.leaks) or "none"] if with_leaks else []
        figures = (column.text(row.stories) for column in shown)
        lines.append((_ranks(row), *leaks, *figures))
    spare = [column.head for column in COLUMNS[_LEAST:]]
    needed = len([head for head in heads if whole or head not in spare])
    yield _Table((heads, *lines), several, needed)
    if any("-" in cell.split() for line in lines for cell in line[1:]):
        yield "(- is unknown)"


def _ranks(row: Row) -> str:
    count = len(row.stories)
    numbers = listed_numbers((story.number for story in row.stories), _LISTED)
    return f"{numbers} ({count})" if count > _COUNTED else numbers


@dataclass(frozen=True)
class _Table:
    rows: tuple[tuple[str, ...], ...]
    """The heads first."""
    several: bool
    """Whether the first cells are lists of ranks, not numbers."""
    needed: int
    """The first columns, of which none is left out."""

    def lines(self, width: int) -> Iterator[str]:
        """A table, of as many columns as there is room for; without room each row is a paragraph that names them."""
        widths = [max(map(cells, column)) for column in zip(*self.rows, strict=True)]
        fitting = max(
            (count for count in range(len(widths) + 1) if sum(widths[:count]) + 2 * count - 2 <= width), default=0
        )
        if fitting >= self.needed:
            for first, *others in self.rows:
                rest = "  ".join(cell.rjust(size) for cell, size in zip(others, widths[1:fitting], strict=False))
                yield f"{first.ljust(widths[0]) if self.several else first.rjust(widths[0])}  {rest}"
            return
        heads, *rows = self.rows
        for first, *others in rows:
            figures = ", ".join(f"{head} {cell}" for head, cell in zip(heads[1:], others, strict=True))
            yield from Paragraph(f"{first}: {figures}", "  rank " if first.isdigit() else "  ranks ", "    ").lines(
                width
            )
