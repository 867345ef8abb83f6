"""The story for a terminal: verdict first, then each leak from the root down to the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.cleaning import cleaned
from leakscope.report.snapshot.section import device_lines
from leakscope.report.text.avoidable import avoidable_lines
from leakscope.report.text.finding import finding_lines
from leakscope.report.text.ledger import ledger_lines
from leakscope.report.text.lines import field_lines, wrapped
from leakscope.report.text.ranks import rank_lines
from leakscope.report.wording import (
    at_end_text,
    first_cut,
    hung_text,
    leaks,
    library,
    next_text,
    notes,
    plural,
    run_text,
    steps_of,
    title,
    unjudged_text,
    why_text,
)
from leakscope.units import bytes_text

LISTED_SHOWN = 30
"""Lines of what was alive at the end: a screenful."""


def render(run: Run, findings: Findings) -> str:
    """The whole report as plain text, at most 110 columns wide, without colour."""
    run, findings = cleaned(run), cleaned(findings)
    lines = [*_verdict(run, findings), "", *_sections(run, findings), *ledger_lines(findings)]
    lines += [*avoidable_lines(run, findings), *rank_lines(run, findings), ""]
    if device := list(device_lines(run)):
        lines += [*(line for text in device for line in wrapped(text, "", "  ")), ""]
    lines += _lists(findings)
    return _joined(lines)


def render_in_test(run: Run, findings: Findings) -> str:
    """What a failing test says was left behind: nothing on a command, its ranks and how they ended."""
    run, findings = cleaned(run), cleaned(findings)
    distinct = leaks(findings)
    lines = [*field_lines("Next", f"{first_cut(distinct)}."), ""] if distinct else []
    lines += _sections(run, findings)
    lines += [
        line
        for rank in run.ranks
        for look in rank.looks
        for text in look.unjudged
        for line in wrapped(text, "- ", "  ")
    ]
    return _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _sections(run: Run, findings: Findings) -> Iterator[str]:
    for section, shown in (("leak", leaks(findings)), ("library", library(findings)), ("note", notes(findings))):
        if shown:
            yield from (*_heading(section, len(shown)), "")
            for number, finding in enumerate(shown, 1):
                yield from (*finding_lines(run, finding, number), "")


def _verdict(run: Run, findings: Findings) -> Iterator[str]:
    device = f", {run.device}" if run.device else ""
    torch = f", torch {run.torch}" if run.torch else ""
    distinct = leaks(findings)
    count = f": {plural(len(distinct), 'distinct leak')}" if distinct else ""
    yield from field_lines("Verdict", f"{findings.verdict.upper()}{count} (exit status {findings.exit_status})")
    if hung := hung_text(run):
        yield from field_lines("Hung", hung)
    yield from field_lines("Why", why_text(findings))
    for sentence in run_text(findings.out_of_memory):
        yield from field_lines("Memory", sentence)
    yield from field_lines("Next", next_text(run, findings))
    about = f"{' '.join(run.command)}: {plural(len(run.ranks), 'rank')}, {plural(steps_of(run), 'step')}{device}{torch}"
    yield from field_lines("Run", about)
    if run.folder:
        yield from field_lines("Folder", run.folder)


def _heading(section: str, count: int) -> tuple[str, str]:
    heading = {
        "leak": "Leaks",
        "library": "Held by libraries: not yours to mend, and no reason to fail",
        "note": "Notes: too small to judge, or no leak by themselves",
    }[section]
    line = f"{heading} ({count})"
    return line, "=" * len(line)


def _lists(findings: Findings) -> Iterator[str]:
    unjudged = [f"{item.rule} on rank {item.rank}: {unjudged_text(item)}" for item in findings.unjudged]
    suppressed = [
        f"[{f.fingerprint}] {f.rule}: {title(f)}, {bytes_text(f.retained_bytes)}" for f in findings.suppressed
    ]
    listed = list(map(at_end_text, findings.listed[:LISTED_SHOWN]))
    if len(findings.listed) > LISTED_SHOWN:
        listed.append(f"and {len(findings.listed) - LISTED_SHOWN} more")
    for heading, items in (
        ("Not judged", unjudged),
        ("Suppressed", suppressed),
        ("Memory that lay unused", run_text(findings.drag)),
        ("What collecting would do", run_text(findings.gc_advice)),
        ("Alive after the script's main code had returned (listed, never judged)", listed),
    ):
        if items:
            yield heading
            yield "=" * len(heading)
            for item in items:
                yield from wrapped(item, "- ", "  ")
            yield ""
