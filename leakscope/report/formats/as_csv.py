"""The figures for a table: steps, looks and ledger, one number a line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO

from leakscope.findings.model import Findings
from leakscope.report.escape import cleaned
from leakscope.run.model import Rank, Run

COLUMNS = ("rank", "from_step", "step", "kind", "name", "finding", "holder", "value", "unit")
"""Of each line. kind `step`: what the counters said at its end; `look`: what was found then; `ledger`: where the growth
went from `from_step` to `step`, `finding` being a fingerprint.
"""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that a spreadsheet takes for a formula (OWASP, CSV injection)."""
_BYTES, _SECONDS = "bytes", "seconds"

_Row = tuple[int | str, int, str, str, str, str, int | float, str]
"""A line without its rank."""


def render(run: Run, findings: Findings) -> str:
    """A header and a line for each figure, by rank; what nobody measured has none."""
    run, findings = cleaned(run), cleaned(findings)
    table = StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for rank in run.ranks:
        rows = (*_steps(rank), *_looks(rank), *_ledger(findings, rank.number))
        writer.writerows([rank.number, *map(_cell, row)] for row in rows)
    return table.getvalue()


def _steps(rank: Rank) -> Iterator[_Row]:
    for step in rank.steps:
        yield from _told("step", step.number, "duration", step.seconds, _SECONDS)
        yield from _told("step", step.number, "counted", step.counted_bytes, _BYTES)
        yield from _told("step", step.number, "peak", step.peak_bytes, _BYTES)


def _looks(rank: Rank) -> Iterator[_Row]:
    for look in rank.looks:
        yield from _told("look", look.step, "counted", look.counted_bytes, _BYTES)
        yield from _told("look", look.step, "found in storages", look.explained_bytes, _BYTES)
        yield from _told("look", look.step, "pause", look.stopped_seconds, _SECONDS)


def _told(kind: str, step: int, name: str, value: int | float | None, unit: str) -> Iterator[_Row]:
    if value is not None:
        yield "", step, kind, name, "", "", value, unit


def _ledger(findings: Findings, rank: int) -> Iterator[_Row]:
    for between in findings.ledgers.get(rank, ()):
        for line in between.lines:
            holder = line.holder or (line.rested or "")
            yield between.from_step, between.to_step, "ledger", line.kind, line.fingerprint, holder, line.bytes, _BYTES


def _cell(value: int | float | str) -> int | float | str:
    """A value; text that a spreadsheet would work out is quoted, as one types it there."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value
