"""Two runs for a pull request: a table of what has changed."""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.known.comparison import Change, Comparison
from leakscope.report.cleaning import cleaned
from leakscope.report.compare.wording import (
    HEADINGS,
    headline,
    leak_text,
    line_of,
    peaks_text,
    rate_text,
    side_text,
    unrelated_text,
    unseen_text,
)
from leakscope.report.formats.github_text import plain


def render(comparison: Comparison) -> str:
    """As GitHub reads it; what comes from the runs is escaped."""
    return "\n".join(_lines(cleaned(comparison))) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"## leakscope: {plain(headline(comparison))}"
    yield ""
    yield f"- **base** {plain(side_text(comparison.base))}"
    yield f"- **new** {plain(side_text(comparison.new))}"
    if peaks := peaks_text(comparison):
        yield f"- **peaks** {plain(peaks)}"
    if text := unrelated_text(comparison):
        yield f"- {plain(text)}"
    if comparison.leaks:
        yield from ("", "| | a step | leak | line |", "|-|-|-|-|")
    for change in Change:
        for leak in comparison.of(change):
            word = HEADINGS[change].partition(":")[0]
            told = " ".join(
                part for part in (leak_text(leak), f"({unseen_text(leak)})" * bool(unseen_text(leak))) if part
            )
            cells = (word, rate_text(leak), f"{told} [{leak.finding.fingerprint}]", line_of(leak.finding))
            yield f"| {' | '.join(map(plain, cells))} |"
