"""In what words does a test fail? Each leak at length once in a process, then in a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from leakscope.pytest_plugin.grouped import WORDS, State
from leakscope.pytest_plugin.judging import Weighed

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.record.model import Run

_ASIDE = (State.OF_LIBRARY, State.KNOWN, State.IGNORED)


def failing_text(run: Run, findings: Findings, leaks: Sequence[Weighed], told: Collection[str], allowance: int) -> str:
    """What a failing test says: the sum, each leak at length that was not told before, the others in a line each."""
    from leakscope.findings.why import Reason, Why
    from leakscope.profiler.leaks import sum_text
    from leakscope.report.text.page import render_in_test

    fails = [leak for leak in leaks if leak.state == State.FAILS]
    left = Why(reason=Reason.LEFT_BEHIND, count=len(fails), bytes=sum(leak.bytes for leak in fails))
    parts = [f"{sum_text(run, findings, left, allowance)}\n"]
    if new := tuple(leak.finding for leak in fails if leak.finding.fingerprint not in told):
        parts.append(render_in_test(run, replace(findings, findings=new)))
    parts.append("\n".join(_beside(fails, leaks, told)))
    return "\n".join(part for part in parts if part)


def _beside(fails: Sequence[Weighed], leaks: Sequence[Weighed], told: Collection[str]) -> Iterator[str]:
    """In a line each what an earlier test told, and in one line what fails nothing."""
    from leakscope.report.cleaning import cleaned
    from leakscope.report.text.lines import WIDTH, cropped
    from leakscope.report.wording import title
    from leakscope.units import bytes_text

    before = [leak for leak in fails if leak.finding.fingerprint in told]
    if before:
        yield "Told by an earlier test, and in leakscope's summary:"
    for leak in before:
        finding = cleaned(leak.finding)
        yield cropped(f"- [{finding.fingerprint}] {bytes_text(leak.bytes)}: {title(finding)}", WIDTH)
    counts = {state: sum(leak.state == state for leak in leaks) for state in _ASIDE}
    if any(counts.values()):
        said = ", ".join(f"{count} {WORDS[state]}" for state, count in counts.items() if count)
        yield f"Left as well, and in leakscope's summary: {said}."
