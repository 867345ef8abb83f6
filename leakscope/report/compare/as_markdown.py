"""Two runs for a pull request: a table of what has changed."""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.suppressions import Comparison
from leakscope.report.compare.wording import (
    HEADINGS,
    headline,
    line_of,
    peaks_text,
    rate_text,
    side_text,
    unrelated_text,
    unseen_text,
)
from leakscope.report.escape import cleaned
from leakscope.report.formats.as_markdown import code, plain, sentence
from leakscope.report.messages.sentences import title


def render(comparison: Comparison) -> str:
    """As GitHub reads it; what comes from the runs is escaped."""
    return "\n".join(_lines(cleaned(comparison))) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"## leakscope: {plain(headline(comparison))}"
    yield ""
    yield f"- **base** {sentence(side_text(comparison.base))}"
    yield f"- **new** {sentence(side_text(comparison.new))}"
    if text := peaks_text(comparison):
        yield f"- **peaks** {plain(text)}"
    if text := unrelated_text(comparison):
        yield f"- {plain(text)}"
    if comparison.leaks:
        yield from ("", "| | a step | leak | line |", "|-|-|-|-|")
    for leak in comparison.leaks:
        unseen = unseen_text(leak)
        told = f"{title(leak.finding)} [{leak.finding.fingerprint}]{f'; {unseen}' if unseen else ''}"
        line = line_of(leak.finding)
        cells = (
            plain(HEADINGS[leak.change].partition(":")[0]),
            plain(rate_text(leak)),
            sentence(told),
            code(line) if line else "",
        )
        yield f"| {' | '.join(cells)} |"
