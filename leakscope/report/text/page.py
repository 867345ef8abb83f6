"""The story for a terminal: verdict first, then each leak from the root down to the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leakscope.findings.model import Finding, Findings
from leakscope.record.model import Run
from leakscope.report.cleaning import cleaned
from leakscope.report.rank_groups import rank_groups
from leakscope.report.snapshot.section import device_lines
from leakscope.report.text.avoidable import avoidable_lines
from leakscope.report.text.brief import brief_finding_lines
from leakscope.report.text.closing import closing_lines
from leakscope.report.text.finding import finding_lines
from leakscope.report.text.ledger import ledger_lines, worker_lines
from leakscope.report.text.lines import WIDTH, Cropped, Line, field_lines, laid_out, wrapped
from leakscope.report.text.ranks import rank_lines
from leakscope.report.text.small_print import small_print
from leakscope.report.text.verdict import about_lines, last_lines, verdict_lines
from leakscope.report.wording import (
    first_cut,
    held_text,
    leaks,
    library,
    notes,
    plural,
    title,
)
from leakscope.units import bytes_text

TOLD = 3
"""Leaks that are told at some length, chosen: the first ones, on half a screen each."""
LISTED = 20
"""Leaks that have a line at least, chosen."""
LEAST_IN_TEST = 12
"""Objects between the cut and the memory that a failing test counts instead of telling them, chosen: half a screen."""
HEADINGS = {
    "leak": "Leaks",
    "library": "Held by libraries: no leak",
    "note": "Notes: too small to judge, or no leak by themselves",
}


def render(run: Run, findings: Findings, verbose: bool = False, width: int = WIDTH, page: str = "") -> str:
    """The report as plain text, so many columns wide, without colour; `page`: where the page of the run lies.

    Without `verbose` it is a screenful: what decides nothing takes a line, and a trace is folded.
    """
    run, findings = cleaned(run), cleaned(findings)
    lines = _whole(run, findings) if verbose else _brief(run, findings, page)
    return _joined(lines, width)


def _brief(run: Run, findings: Findings, page: str) -> Iterator[Line]:
    distinct = leaks(findings)
    groups = rank_groups(run, findings)
    alike = [group.ranks for group in groups]
    yield from (*verdict_lines(run, findings, alike), "")
    for number, finding in enumerate(distinct[:TOLD], 1):
        yield from (*brief_finding_lines(run, finding, number), "")
    for number, finding in enumerate(distinct[TOLD:LISTED], TOLD + 1):
        yield Cropped(f"{number}. {bytes_text(finding.retained_bytes)} [{finding.fingerprint}] {title(finding)}")
    if len(distinct) > LISTED:
        yield f"and {plural(len(distinct) - LISTED, 'smaller leak')}"
    if len(distinct) > TOLD:
        yield ""
    yield from closing_lines(run, findings, groups, page)
    yield from ("", *small_print(run, findings, verbose=False, groups=alike))
    yield from last_lines(run, findings)


def _whole(run: Run, findings: Findings) -> Iterator[Line]:
    yield from (*verdict_lines(run, findings), *about_lines(run), "")
    yield from _section(run, "leak", leaks(findings), whole=True)
    yield from (*avoidable_lines(run, findings), *ledger_lines(findings, verbose=True))
    yield from worker_lines(findings)
    yield from _aside(run, findings, whole=True)
    yield from (*rank_lines(run, findings, rank_groups(run, findings), verbose=True), "")
    if device := list(device_lines(run)):
        yield from (*(line for text in device for line in wrapped(text, "", "  ")), "")
    yield from small_print(run, findings, verbose=True)
    yield from last_lines(run, findings)


def render_in_test(run: Run, findings: Findings) -> str:
    """What a failing test says was left behind: nothing on a command, its ranks and how they ended."""
    run, findings = cleaned(run), cleaned(findings)
    distinct = leaks(findings)
    lines = [*field_lines("Next", f"{first_cut(distinct)}."), ""] if distinct else []
    lines += _section(run, "leak", distinct, whole=True, least=LEAST_IN_TEST)
    lines += _aside(run, findings, whole=False)
    lines += [
        line
        for rank in run.ranks
        for look in rank.looks
        for text in look.unjudged
        for line in wrapped(text, "- ", "  ")
    ]
    return _joined(lines)


def _joined(lines: Iterable[Line], width: int = WIDTH) -> str:
    return "\n".join(line.rstrip() for line in laid_out(lines, width)).rstrip() + "\n"


def _aside(run: Run, findings: Findings, whole: bool) -> Iterator[Line]:
    yield from _section(run, "library", library(findings), whole)
    yield from _section(run, "note", notes(findings), whole)


def _section(run: Run, name: str, shown: Sequence[Finding], whole: bool, least: int = 0) -> Iterator[Line]:
    """Findings under their heading; a line each where they are not told whole. `least` as `trace_lines` has it."""
    if not shown:
        return
    heading = f"{HEADINGS[name]} ({len(shown)})"
    yield from (heading, "=" * len(heading), "")
    for number, finding in enumerate(shown, 1):
        yield from (*finding_lines(run, finding, number, least), "") if whole else _folded(finding)
    if not whole:
        yield ""


def _folded(finding: Finding) -> Iterator[Line]:
    """A finding that decides nothing, in a line."""
    yield from wrapped(f"{title(finding)}; {held_text(finding)}; {finding.rule} [{finding.fingerprint}]", "- ", "  ")
