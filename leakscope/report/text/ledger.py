"""Where did the growth go?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.model import Findings
from leakscope.report.text.lines import Line, wrapped
from leakscope.report.wording import ledger_table, like_text, lines_text, plural, rose_text
from leakscope.units import bytes_text

_RANKS_SHOWN = 4
"""Ranks whose lines are listed; chosen."""


def ledger_lines(findings: Findings, groups: Sequence[Sequence[int]] = (), verbose: bool = False) -> Iterator[Line]:
    """One line for each kind of growth, and for each leak, of the ranks that grew most; nothing where none grew.

    `groups`: ranks that did the same, of which one is told. `verbose`: then the growth between each two looks.
    """
    tables = sorted(ledger_table(findings, groups), key=lambda table: (-table[0].bytes, table[0].rank))
    if not tables:
        return
    yield "Where the growth went"
    yield "====================="
    for grown, more, lines in tables[:_RANKS_SHOWN]:
        yield from wrapped(f"{like_text(grown.rank, more)}: {rose_text(grown, rate=False)}", "", "  ")
        for size, per_step, what in lines:
            first = f"  {bytes_text(size):>12}  {bytes_text(per_step):>12} a step  "
            yield from wrapped(what, first, " " * len(first))
        for interval in findings.ledgers[grown.rank] if verbose else ():
            rose = bytes_text(interval.grown)
            told = f"steps {interval.from_step} to {interval.to_step}: {rose}: {lines_text(interval.lines)}"
            yield from wrapped(told, "  ", "    ")
    if rest := sum(1 + more for _, more, _ in tables[_RANKS_SHOWN:]):
        yield f"and {plural(rest, 'more rank')} that grew by less"
    yield ""
