"""Where did the growth go?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.model import Findings
from leakscope.report.text.lines import Line, wrapped
from leakscope.report.wording import (
    ledger_table,
    like_text,
    lines_text,
    loader_notes,
    loader_text,
    plural,
    rose_text,
    worker_line_text,
)
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


def worker_lines(findings: Findings) -> Iterator[Line]:
    """The loaders of each rank with what makes up the memory of their workers; nothing where none has workers."""
    found = [(rank, loader) for rank, loaders in sorted(findings.loaders.items()) for loader in loaders]
    if not found:
        return
    yield from ("Loader workers", "==============")
    for rank, loader in found:
        of_rank = f"rank {rank}: " if len(findings.ranks) > 1 else ""
        yield from wrapped(f"{of_rank}{loader_text(loader)}", "", "  ")
        for line in loader.lines:
            if line.bytes:
                first = f"  {bytes_text(line.bytes):>12}  "
                yield from wrapped(worker_line_text(line), first, " " * len(first))
        each = (
            f"worker {one.worker}: {bytes_text(one.unique_bytes)} unique, {bytes_text(one.proportional_bytes)} "
            f"proportional, grew by {bytes_text(one.grew_bytes)}"
            for one in loader.workers
        )
        for text in (*each, *loader_notes(loader)):
            yield from wrapped(text, "  - ", "    ")
    yield ""
