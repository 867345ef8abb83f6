"""The story for a terminal: verdict first, then each leak from the root down to the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leakscope.findings.model import Finding, Findings
from leakscope.record.model import Run
from leakscope.report.cleaning import cleaned
from leakscope.report.per_rank import looking_text
from leakscope.report.rank_groups import rank_groups
from leakscope.report.snapshot.section import device_lines
from leakscope.report.text.avoidable import avoidable_lines
from leakscope.report.text.finding import finding_lines
from leakscope.report.text.ledger import ledger_lines
from leakscope.report.text.lines import WIDTH, Line, field_lines, laid_out, wrapped
from leakscope.report.text.ranks import rank_lines
from leakscope.report.text.small_print import small_print
from leakscope.report.wording import (
    clock_text,
    failure_text,
    first_cut,
    held_text,
    hung_text,
    leaks,
    library,
    next_text,
    notes,
    plural,
    run_text,
    steps_of,
    title,
    why_text,
)

HEADINGS = {
    "leak": "Leaks",
    "library": "Held by libraries: no leak",
    "note": "Notes: too small to judge, or no leak by themselves",
}


def render(run: Run, findings: Findings, verbose: bool = False, width: int = WIDTH) -> str:
    """The whole report as plain text, so many columns wide, without colour.

    Without `verbose` what decides nothing takes a line, and figures that are only of use beside a leak are left out.
    """
    run, findings = cleaned(run), cleaned(findings)
    groups = rank_groups(run, findings)
    alike = () if verbose else [group.ranks for group in groups]
    lines = [*_verdict(run, findings, alike), "", *_section(run, "leak", leaks(findings), whole=True)]
    lines += [*avoidable_lines(run, findings), *ledger_lines(findings, alike, verbose), *_aside(run, findings, verbose)]
    lines += [*rank_lines(run, findings, groups, verbose), ""]
    if device := list(device_lines(run, alike)):
        lines += [*(line for text in device for line in wrapped(text, "", "  ")), ""]
    lines += small_print(run, findings, verbose, alike)
    return _joined(lines, width)


def render_in_test(run: Run, findings: Findings) -> str:
    """What a failing test says was left behind: nothing on a command, its ranks and how they ended."""
    run, findings = cleaned(run), cleaned(findings)
    distinct = leaks(findings)
    lines = [*field_lines("Next", f"{first_cut(distinct)}."), ""] if distinct else []
    lines += _section(run, "leak", distinct, whole=True)
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


def _verdict(run: Run, findings: Findings, groups: Sequence[Sequence[int]]) -> Iterator[Line]:
    name, failure = failure_text(run)
    if failure:
        yield from field_lines(name, failure)
    distinct = leaks(findings)
    count = f": {plural(len(distinct), 'distinct leak')}" if distinct else ""
    nothing = failure and not steps_of(run) and not distinct
    count = ": before the first step there is nothing to judge" if nothing else count
    yield from field_lines("Verdict", f"{findings.verdict.upper()}{count} (exit status {findings.exit_status})")
    if hung := hung_text(run):
        yield from field_lines("Hung", hung)
    if not nothing:
        yield from field_lines("Why", why_text(findings))
    for sentence in run_text(findings.out_of_memory, groups):
        yield from field_lines("Memory", sentence)
    if not nothing:
        yield from field_lines("Next", next_text(run, findings))
    yield from field_lines("Run", _about(run))
    if run.folder:
        yield from field_lines("Folder", run.folder)


def _about(run: Run) -> str:
    """`train.py: 2 ranks, 12 steps by Adam.step, 4 looks (960.0 ms), cpu, torch 2.13.0, native heap reader`."""
    steps = f"{plural(steps_of(run), 'step')} {clock_text(run)}".strip()
    of_run = (plural(max(len(run.ranks), run.expected_ranks), "rank"), steps, looking_text(run))
    reader = f"{run.heap_reader} heap reader" if run.heap_reader else ""
    parts = (*of_run, run.device, f"torch {run.torch}" if run.torch else "", reader)
    return f"{' '.join(run.command)}: {', '.join(part for part in parts if part)}"


def _aside(run: Run, findings: Findings, whole: bool) -> Iterator[Line]:
    yield from _section(run, "library", library(findings), whole)
    yield from _section(run, "note", notes(findings), whole)


def _section(run: Run, name: str, shown: Sequence[Finding], whole: bool) -> Iterator[Line]:
    """Findings under their heading; a line each where they are not told whole."""
    if not shown:
        return
    heading = f"{HEADINGS[name]} ({len(shown)})"
    yield from (heading, "=" * len(heading), "")
    for number, finding in enumerate(shown, 1):
        yield from (*finding_lines(run, finding, number), "") if whole else _folded(finding)
    if not whole:
        yield from ("  (--verbose tells what holds each, and where it was made)", "")


def _folded(finding: Finding) -> Iterator[Line]:
    """A finding that decides nothing, in a line."""
    yield from wrapped(f"{title(finding)}; {held_text(finding)} [{finding.fingerprint}]", "- ", "  ")
