"""What memory lies there for longer than it is needed, and who could let go of it?"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.text.lines import Line, wrapped
from leakscope.report.wording import avoidable, avoidable_text

SHOWN = 12
"""Lines at the most, chosen: the largest; the page has all of them."""


def avoidable_lines(run: Run, findings: Findings) -> Iterator[Line]:
    """A line for each holder, the largest first; nothing where nothing could be avoided."""
    found = avoidable(findings)
    if not found:
        return
    heading = f"Avoidable memory ({len(found)}): never a leak"
    yield from (heading, "=" * len(heading))
    for finding in found[:SHOWN]:
        yield from wrapped(avoidable_text(run, finding), "- ", "  ")
    if len(found) > SHOWN:
        yield f"- and {len(found) - SHOWN} smaller ones: see the page"
    yield ""
