"""The story as one page that opens offline: verdict, traces, drawings, plots and the operations over time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.findings.kinds import HopStatus, Origin, RuleName, Severity
from leakscope.findings.memory.gc_advice import collecting_matters
from leakscope.findings.memory.oom import ranks_out_of_memory
from leakscope.findings.model import Finding, Findings, Hop
from leakscope.record.kinds import Occasion
from leakscope.record.model import Rank, Run
from leakscope.report import adding_lines, marks, wording
from leakscope.report.cleaning import cleaned
from leakscope.report.html import plots
from leakscope.report.html.drawings import draw
from leakscope.report.html.plots import categories_plot, categories_shown, category_series, memory_plot
from leakscope.report.html.timeline import Timeline, timeline
from leakscope.report.per_rank import RankStory, rank_stories
from leakscope.report.snapshot.section import device_section
from leakscope.units import bytes_text
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from markupsafe import Markup

RANKS_DRAWN = 8
"""Ranks whose plots stand open on the page; those of the others are folded away."""

COLUMN = 680
"""Width in px of the widest drawing that still reads well when shrunk into the column beside a trace."""

DRAWINGS = 40
"""Findings that are drawn; any further ones have their trace in words only."""


@dataclass(frozen=True)
class HopOnPage:
    """One hop as the page sets it."""

    hop: Hop
    colour: HopStatus
    """What is leaked stands out in a leak only: a note blames nobody."""
    reason: str
    """"" where it is that of the hop before."""
    suspect: bool
    """Its reference may be the one at fault."""
    cut: bool
    """Its reference is the one to cut."""
    closed: bool
    """The cycle is closed here."""


@dataclass(frozen=True)
class FindingOnPage:
    """One finding as the page sets it."""

    finding: Finding
    faint: bool
    """Nothing that the reader must mend: a note, or a library's."""
    hops: tuple[HopOnPage, ...]
    no_trace: bool
    """Nothing is known to lead to it; of a late release the holders are known, and many."""
    drawing: Markup | None
    wide: bool
    """The drawing needs the page's whole width."""
    cut_line: str
    added_at: tuple[tuple[str, str], ...]
    """(place, source line)"""
    made_at: tuple[tuple[str, str], ...]
    """(place, source line)"""
    sightings: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """(rank, ((step, bytes), ...))"""


@dataclass(frozen=True)
class RankOnPage:
    """One rank as the page sets it."""

    story: RankStory
    memory: Markup | None
    stacked: Markup | None
    series: Mapping[str, int]
    looks: tuple[tuple[int, Mapping[str, int], int | None, int | None], ...]
    """(step, bytes by category, explained, counted) at each look that was sorted into categories."""
    operations: Timeline | None
    operations_svg: Markup | None


def load() -> None:
    """Import what the page is drawn with."""
    import_module("leakscope.report.html.templates")
    plots.load()


def render(run: Run, findings: Findings) -> str:
    """The whole page, styles and drawings inside; everything that came from the run is escaped."""
    from leakscope.report.html.templates import templates

    environment = templates(Path(__file__).parent)
    environment.filters |= {"bytes": bytes_text, "numbers": wording.listed_numbers, "ticked": _ticked}
    run, findings = cleaned(run), cleaned(findings)
    sections = (
        ("Leaks", "", wording.leaks(findings)),
        ("Held by libraries", "No leak.", wording.library(findings)),
        ("Notes", "Too small to judge, or no leak by themselves.", wording.notes(findings)),
    )
    avoidable = wording.avoidable(findings)
    shown_all = [*(f for _, _, shown in sections for f in shown), *avoidable]
    drawn = {id(finding) for finding in shown_all[:DRAWINGS]}
    out_of_memory = tuple(rank.number for rank in ranks_out_of_memory(run))
    return environment.get_template("page.html").render(
        run=run,
        findings=findings,
        sections=[(head, about, [_finding(run, f, id(f) in drawn) for f in shown]) for head, about, shown in sections],
        collecting=collecting_matters(findings.gc_advice),
        avoidable=[_finding(run, f, id(f) in drawn) for f in avoidable],
        ranks=_ranks(run, findings),
        ranks_drawn=RANKS_DRAWN,
        device=device_section(run),
        steps=wording.steps_of(run),
        failure=wording.failure_text(run),
        next=wording.next_text(run, findings),
        out_of_memory=out_of_memory,
        colour=Verdict.LEAKS if out_of_memory else findings.verdict,
        absolute=_absolute(run),
        words=wording,
        no_trace=marks.NO_TRACE,
        source=adding_lines,
    )


def _absolute(run: Run) -> bool:
    """On CPU the counted bytes are the whole process's: only their growth means anything."""
    return bool(run.device) and not run.device.startswith("cpu")


def _finding(run: Run, finding: Finding, drawn: bool) -> FindingOnPage:
    drawing = draw(finding) if drawn else ""
    width = re.search(r' width="(\d+)"', drawing)
    return FindingOnPage(
        finding=finding,
        faint=finding.severity != Severity.LEAK or finding.origin == Origin.LIBRARY,
        hops=_hops(finding),
        no_trace=not finding.trace and finding.rule != RuleName.LATE_RELEASE,
        drawing=_safe(drawing),
        wide=width is not None and int(width[1]) > COLUMN,
        cut_line=marks.source_line(run, finding.cut.where) if finding.cut is not None else "",
        added_at=adding_lines.adding_lines(run, finding),
        made_at=marks.allocation_sites(run, finding),
        sightings=tuple(
            (rank, tuple(sorted((s.step, s.bytes) for s in finding.sightings if s.rank == rank)))
            for rank in finding.ranks
        ),
    )


def _hops(finding: Finding) -> tuple[HopOnPage, ...]:
    at_fault, reasons = marks.suspects(finding), wording.new_reasons(finding)
    blames = finding.severity == Severity.LEAK
    return tuple(
        HopOnPage(
            hop=hop,
            colour=hop.status if blames or hop.status == HopStatus.EXPECTED else HopStatus.UNKNOWN,
            reason=reasons[index],
            suspect=index in at_fault,
            cut=index == finding.cut_position,
            closed=marks.closes_cycle(finding, index),
        )
        for index, hop in enumerate(finding.trace)
    )


def _ranks(run: Run, findings: Findings) -> list[RankOnPage]:
    return [_rank(run, rank, story) for rank, story in zip(run.ranks, rank_stories(run, findings), strict=True)]


def _rank(run: Run, rank: Rank, story: RankStory) -> RankOnPage:
    by_step = story.summary.categories_by_step
    looks = {look.step: look for look in rank.looks if look.occasion in (Occasion.STEP, Occasion.LAST)}
    operations = timeline(rank.operations)
    return RankOnPage(
        story=story,
        memory=_safe(memory_plot(rank, _absolute(run))),
        stacked=_safe(categories_plot(rank.number, story.summary)),
        series=category_series(categories_shown(story.summary)),
        looks=tuple(
            (step, sizes, looks[step].explained_bytes, looks[step].counted_bytes)
            if step in looks
            else (step, sizes, None, None)
            for step, sizes in by_step
        ),
        operations=operations,
        operations_svg=_safe(operations.svg) if operations is not None else None,
    )


def _ticked(text: str) -> Markup:
    """Text with what stands between backticks set as code."""
    from markupsafe import Markup, escape

    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(pieces))


def _safe(svg: str) -> Markup | None:
    """A drawing whose texts are escaped already; None where there is none."""
    from markupsafe import Markup

    return Markup(svg) if svg else None
