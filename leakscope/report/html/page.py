"""The HTML page: one file, with its script and content security policy."""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from leakscope.findings.comm import first_to_fail
from leakscope.findings.facts import Severity
from leakscope.findings.model import Finding, Findings
from leakscope.findings.oom import ranks_out_of_memory
from leakscope.report import charts, drawing, messages, trace_marks
from leakscope.report.escape import cleaned
from leakscope.report.html.cards import FindingOnPage, finding_on_page
from leakscope.report.html.filters import FILTERS
from leakscope.report.html.memory import memory_on_page
from leakscope.report.html.ranks import is_absolute, ranks_on_page
from leakscope.report.memory_snapshot import device_section
from leakscope.report.ranks import rank_groups
from leakscope.run.model import Run
from leakscope.verdict import Verdict

_FILE = Path(__file__).with_name("parts") / "script.js"


@functools.cache
def script() -> str:
    """The text of the script, as it stands between its tags; nothing of a run is in it."""
    return _FILE.read_text(encoding="utf-8")


@functools.cache
def policy() -> str:
    """The page's Content-Security-Policy: it loads nothing, and runs the script with this very text alone.

    A hash of the text is what the browser compares (https://www.w3.org/TR/CSP3/#match-element-to-source-list).
    """
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


CARDS_OPEN = 3
"""Leaks, the largest, whose cards stand open; those of the others are a line each until they are opened."""

CARDS_SHOWN = 12
"""Leaks, the largest, that have a line outside of what is folded."""

LISTED = 8
"""Leaks that the list at the top shows at once, so that they and the verdict are on the first screen."""

MIB = 1024 * 1024
"""Bytes of avoidable memory, chosen, from which a clean run's page shows it at once."""

DRAWINGS = 40
"""Findings that are drawn; any further ones have their trace in words only."""


@dataclass(frozen=True)
class Aside:
    """Findings that are no leak, folded."""

    title: str
    about: str
    findings: tuple[Finding, ...]
    open: bool = False
    prefix: str = ""
    """Of their ids on the page."""


def load() -> None:
    """Import what the page is drawn with."""
    import_module("leakscope.report.html.filters")
    charts.load()


def render(run: Run, findings: Findings) -> str:
    """The whole page, styles and drawings inside; everything that came from the run is escaped."""
    from leakscope.report.html.filters import templates

    environment = templates(Path(__file__).parent)
    environment.filters |= FILTERS
    run, findings = cleaned(run), cleaned(findings)
    groups = rank_groups(run, findings)
    alike = [group.ranks for group in groups]
    leaks = messages.leaks(findings)
    told_first = _told_first(run, findings)
    asides = _asides(findings, told_first)
    shown_all = [*leaks, *(f for aside in asides for f in aside.findings)]
    drawings = {id(f): drawn for f in shown_all[:DRAWINGS] if (drawn := drawing.of_finding(f)) is not None}
    svgs = dict(zip(drawings, drawing.inline_svgs([*drawings.values()]), strict=False))

    def on_page(finding: Finding) -> FindingOnPage:
        svg = svgs.get(id(finding), "")
        return finding_on_page(run, finding, svg, is_undrawn=not svg and id(finding) in drawings)

    out_of_memory = tuple(rank.number for rank in ranks_out_of_memory(run))
    return environment.get_template("page.html").render(
        run=run,
        findings=findings,
        leaks=[on_page(finding) for finding in leaks],
        asides=[(aside, [on_page(finding) for finding in aside.findings]) for aside in asides],
        cards_open=CARDS_OPEN,
        cards_shown=CARDS_SHOWN,
        listed=LISTED,
        ended_badly=any(messages.ended_badly(rank) for rank in run.ranks),
        ranks=ranks_on_page(run, findings, groups),
        alike=alike,
        memory=memory_on_page(run, findings, groups, is_absolute(run)),
        device=device_section(run, alike),
        steps=messages.steps_of(run),
        headline=messages.headline(run, findings),
        failure=messages.failure_text(run),
        failed_line=_failed_line(run),
        is_told_below=not leaks
        and (findings.verdict == Verdict.INCONCLUSIVE or any(map(messages.is_fault, findings.unjudged))),
        next=messages.next_text(run, findings),
        told_first=told_first,
        out_of_memory=out_of_memory,
        colour=Verdict.LEAKS if out_of_memory or findings.failed else findings.verdict,
        absolute=is_absolute(run),
        words=messages,
        no_trace=trace_marks.NO_TRACE,
        no_dot=drawing.NO_DOT,
        policy=policy(),
        script=script(),
    )


def _told_first(run: Run, findings: Findings) -> tuple[Finding, ...]:
    """The only news of a clean run, which "next" speaks of: what grew, else memory that could be let go of."""
    if findings.verdict != Verdict.CLEAN or findings.suppressed or any(map(messages.ended_badly, run.ranks)):
        return ()
    notes, avoidable = messages.notes(findings), messages.avoidable(findings)
    if growing := tuple(f for f in notes if f.bytes_per_step > 0 and not f.settled):
        return growing
    much = sum(f.retained_bytes for f in avoidable) >= MIB
    return avoidable if much or not (notes or messages.library(findings)) else ()


def _asides(findings: Findings, told_first: tuple[Finding, ...]) -> tuple[Aside, ...]:
    kinds = {finding.severity for finding in told_first}
    return (
        Aside(
            "Notes",
            "too small to judge, or no leak by themselves",
            messages.notes(findings),
            open=Severity.NOTE in kinds,
        ),
        Aside("Held by libraries", "no leak", messages.library(findings)),
        Aside(
            "Avoidable memory",
            "never a leak: it lies there for longer than it is needed",
            messages.avoidable(findings),
            open=findings.avoidable_over is not None or Severity.AVOIDABLE in kinds,
        ),
        Aside("Suppressed", "known before: they decide nothing", findings.suppressed, prefix="suppressed-"),
    )


def _failed_line(run: Run) -> trace_marks.KeptLine | None:
    """The user's own line at which the first rank to fail failed; None where that is not known."""
    rank = first_to_fail(run)
    return None if rank is None or not rank.ended.at else trace_marks.kept_line(run, rank.ended.at)
