"""Holders of tensor memory as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.live_objects import Alive, Typed, Ways
from leakscope.report.escape import one_line
from leakscope.report.holding import wording
from leakscope.units import bytes_text, plural

_HEAD = ("held", "would be freed", "holder", "line")


def alive_as_text(alive: Alive, headline: str = "") -> str:
    """A line for each holder, below a headline; below it what else has to go, at the end what to type."""
    return "\n".join(_alive(alive, headline or wording.headline(alive)))


def _alive(alive: Alive, headline: str) -> Iterator[str]:
    yield headline
    if not alive.lines:
        return
    if alive.hides:
        yield wording.HIDES
    rows = [
        (bytes_text(held.bytes), wording.freed(held), one_line(wording.holder(alive, held)), held.where)
        for held in alive.lines
    ]
    below = [one_line(wording.together(held)) for held in alive.lines]
    if alive.smaller:
        rows.append((bytes_text(alive.smaller_bytes), "-", f"{plural(alive.smaller, 'smaller holder')}", ""))
        below.append("")
    yield ""
    widths = [max(len(row[k]) for row in (_HEAD, *rows)) for k in range(3)]
    yield _row(_HEAD, widths)
    for row, more in zip(rows, below, strict=True):
        yield _row(row, widths)
        if more:
            yield " " * (sum(widths[:2]) + 6) + more
    if alive.typed:
        yield ""
        yield wording.TYPE
        yield from _typed(alive.typed)


def _typed(steps: Sequence[Typed]) -> Iterator[str]:
    for text, frees in wording.to_type(steps):
        *lines, last = text.split("\n")
        yield from (f"  {line}" for line in lines)
        yield f"  {last}    # {frees}" if frees else f"  {last}"


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    return f"{row[0]:>{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}".rstrip()


def ways_as_text(ways: Ways) -> str:
    """A line for each way, and what frees the memory."""
    return "\n".join(_ways(ways))


def _ways(ways: Ways) -> Iterator[str]:
    yield wording.ways_headline(ways)
    for number, way in enumerate(ways.ways, start=1):
        where = f"  ({way.where})" if way.where else ""
        yield f"{number:>4}. {one_line(way.written)}{where}"
    if ways.more:
        yield f"      and {'' if ways.all_counted else 'more than '}{ways.more} more"
    for text in (wording.kept_besides(ways), wording.ways_freed(ways)):
        if text:
            yield text
    yield from _typed(ways.typed)
