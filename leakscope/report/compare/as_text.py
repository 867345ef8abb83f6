"""Two runs for a terminal: what has changed first, then each leak once."""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.suppressions import Change, Comparison
from leakscope.report.compare.wording import (
    HEADINGS,
    headline,
    peaks_text,
    rate_text,
    side_text,
    unrelated_text,
    where_text,
)
from leakscope.report.escape import cleaned
from leakscope.report.messages.sentences import title
from leakscope.report.text.lines import WIDTH, Line, field_lines, laid_out, wrapped


def render(comparison: Comparison, width: int = WIDTH) -> str:
    """All of it, without colour."""
    return "\n".join(line.rstrip() for line in laid_out(_lines(cleaned(comparison)), width)).rstrip() + "\n"


def _lines(comparison: Comparison) -> Iterator[Line]:
    yield from field_lines("Compared", f"{headline(comparison)} (exit status {comparison.exit_status})", column=10)
    if text := unrelated_text(comparison):
        yield from field_lines("Note", text, column=10)
    yield from field_lines("Base", side_text(comparison.base), column=10)
    yield from field_lines("New", side_text(comparison.new), column=10)
    if peaks := peaks_text(comparison):
        yield from field_lines("Peaks", peaks, column=10)
    for change in Change:
        leaks = comparison.of(change)
        if leaks:
            heading = f"{HEADINGS[change]} ({len(leaks)})"
            yield from ("", heading, "=" * len(heading))
        for leak in leaks:
            finding = leak.finding
            yield from wrapped(f"{rate_text(leak)}: {title(finding)} [{finding.fingerprint}]", "- ", "  ")
            yield from wrapped(where_text(leak), "  ", "  ")
