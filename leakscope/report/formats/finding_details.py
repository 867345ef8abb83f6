"""The details of one finding as plain lines, for formats without pictures."""

from __future__ import annotations

from leakscope.findings.model import Finding
from leakscope.report.excerpt import ADDED_AT, edit_text
from leakscope.report.messages.held import (
    also_text,
    cut_name,
    freed_text,
    holds_nothing,
    reason_text,
    status_word,
    would_be_freed,
)


def trace_lines(finding: Finding) -> tuple[str, ...]:
    """The objects from the root down, each with its status and its reference to the next."""
    told = [(hop, status_word(finding, hop), reason_text(hop)) for hop in finding.trace]
    return tuple(
        f"{hop.object} ({f'{word}: {why}' if why else word}) {hop.reference}".rstrip() for hop, word, why in told
    )


def cut_line(finding: Finding) -> str:
    """What to cut, where, and the bytes it frees; "" without a cut."""
    if finding.cut is None:
        return ""
    where = f", held at {finding.cut.where}" if finding.cut.where else ""
    return f"Cut: {cut_name(finding.cut)}{where}{also_text(finding.cut)}: {would_be_freed(finding)}"


def detail_lines(finding: Finding) -> tuple[str, ...]:
    """Trace, cut, the lines that add to it, the edit, what frees it, and the allocation site."""
    references = finding.cut.references if finding.cut is not None else ()
    added = dict.fromkeys(place for reference in references for place in reference.added_at)
    lines = [
        *trace_lines(finding),
        cut_line(finding),
        *(f"{ADDED_AT} {place}" for place in added),
        edit_text(finding) if finding.cut is not None else "",
        "" if holds_nothing(finding) else f"Freed by: {freed_text(finding)}",
        *(f"Made at: {place}" for place in finding.made_at),
    ]
    return tuple(line.rstrip() for line in lines if line)
