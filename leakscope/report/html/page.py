"""The HTML page: one file, with its script and content security policy."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leakscope import units
from leakscope.findings.comm import first_to_fail
from leakscope.findings.facts import HopStatus, Severity
from leakscope.findings.model import Finding, Findings, Hop, Sighting
from leakscope.findings.oom import ranks_out_of_memory
from leakscope.report import (
    charts,
    drawing,
    excerpt,
    finding_text,
    fix_text,
    growth_text,
    rank_text,
    run_text,
    verdict_text,
)
from leakscope.report.charts import sparkline
from leakscope.report.excerpt import Excerpt, LineMark, excerpts, folded_trace
from leakscope.report.html.chart_data import Timeline, memory_on_page, step_ends, timeline
from leakscope.report.memory_snapshot import device_section
from leakscope.report.ranks import (
    Column,
    RankGroup,
    RankReport,
    all_of,
    columns_of,
    notes_of,
    notes_together,
    rank_groups,
)
from leakscope.report.rendering import cleaned, html_page
from leakscope.run.fixes import LeakFix
from leakscope.run.model import Rank, Run
from leakscope.run.rows import EndKind
from leakscope.units import like_text, ranks_text
from leakscope.verdict import Verdict


@functools.cache
def script() -> str:
    """The text of the script, without its tags; contains no data of the run."""
    return Path(__file__).with_name("report.js").read_text(encoding="utf-8")


@functools.cache
def policy() -> str:
    """The page's Content-Security-Policy: it loads nothing, and runs only the script with this text.

    The browser compares a hash of the text (https://www.w3.org/TR/CSP3/#match-element-to-source-list).
    """
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


CARDS_OPEN = 3
"""Leaks, largest first, whose cards are open; the others show one line."""

CARDS_SHOWN = 12
"""Leaks, largest first, outside the folded section."""

LISTED = 8
"""Rows of the list at the top, which fit on the first screen with the verdict."""

MIB = 1024 * 1024
"""Avoidable memory from which a clean run's page opens that section; heuristic: less is noise."""

DRAWINGS = 40
"""Findings with a drawing; heuristic: dot takes 10 ms for each."""


@dataclass(frozen=True)
class Aside:
    """A folded section of findings that are not leaks."""

    title: str
    about: str
    findings: tuple[Finding, ...]
    open: bool = False
    prefix: str = ""
    """Of their ids on the page."""


def load() -> None:
    """Import what the page is drawn with."""
    charts.load()


def render(run: Run, findings: Findings) -> str:
    """Render the whole page, with styles and drawings; all recorded text is escaped."""
    run, findings = cleaned(run), cleaned(findings)
    groups = rank_groups(run, findings)
    alike = [group.ranks for group in groups]
    leaking = findings.leaks
    shown_first = _shown_first(run, findings)
    asides = _asides(findings, shown_first)
    shown_all = [*leaking, *(f for aside in asides for f in aside.findings)]
    drawings = {id(f): drawn for f in shown_all[:DRAWINGS] if (drawn := drawing.of_finding(f)) is not None}
    svgs = dict(zip(drawings, drawing.inline_svgs([*drawings.values()]), strict=False))

    def on_page(finding: Finding) -> FindingOnPage:
        svg = svgs.get(id(finding), "")
        return finding_on_page(run, finding, svg, is_undrawn=not svg and id(finding) in drawings)

    out_of_memory = tuple(rank.number for rank in ranks_out_of_memory(run))
    return html_page(
        "page.html",
        run=run,
        findings=findings,
        leaks=[on_page(finding) for finding in leaking],
        asides=[(aside, [on_page(finding) for finding in aside.findings]) for aside in asides],
        cards_open=CARDS_OPEN,
        cards_shown=CARDS_SHOWN,
        listed=LISTED,
        ended_badly=any(rank_text.ended_badly(rank) for rank in run.ranks),
        ranks=ranks_on_page(run, groups),
        alike=alike,
        memory=memory_on_page(run, findings, groups, is_absolute(run)),
        device=device_section(run, alike),
        fix_svg="" if run.fix is None else charts.fix_chart(run.fix.before, run.fix.after),
        steps=verdict_text.steps_of(run),
        headline=verdict_text.headline(run, findings),
        failure=rank_text.failure_text(run),
        failed_line=_failed_line(run),
        opens_details=not leaking
        and (findings.verdict == Verdict.INCONCLUSIVE or any(map(verdict_text.is_fault, findings.unjudged))),
        next=verdict_text.next_text(run, findings),
        shown_first=shown_first,
        out_of_memory=out_of_memory,
        colour=Verdict.LEAKS if out_of_memory or findings.failed else findings.verdict,
        absolute=is_absolute(run),
        **{
            module.__name__.rpartition(".")[2]: module
            for module in (excerpt, finding_text, fix_text, growth_text, rank_text, run_text, units, verdict_text)
        },
        no_dot=drawing.NO_DOT,
        policy=policy(),
        script=script(),
    )


def _shown_first(run: Run, findings: Findings) -> tuple[Finding, ...]:
    """The findings of a clean run to which "Next" refers: growth, else avoidable memory."""
    if findings.verdict != Verdict.CLEAN or findings.suppressed or any(map(rank_text.ended_badly, run.ranks)):
        return ()
    notes, avoidable = verdict_text.notes(findings), verdict_text.avoidable(findings)
    if growing := tuple(f for f in notes if f.bytes_per_step > 0 and not f.settled):
        return growing
    much = sum(f.retained_bytes for f in avoidable) >= MIB
    return avoidable if much or not (notes or verdict_text.library(findings)) else ()


def _asides(findings: Findings, shown_first: tuple[Finding, ...]) -> tuple[Aside, ...]:
    kinds = {finding.severity for finding in shown_first}
    return (
        Aside(
            "Notes",
            "not leaks by themselves",
            verdict_text.notes(findings),
            open=Severity.NOTE in kinds,
        ),
        Aside("Retained by libraries", "not leaks", verdict_text.library(findings)),
        Aside(
            "Avoidable memory",
            "not leaks: retained longer than needed",
            verdict_text.avoidable(findings),
            open=findings.avoidable_over is not None or Severity.AVOIDABLE in kinds,
        ),
        Aside("Suppressed", "known findings, not part of the verdict", findings.suppressed, prefix="suppressed-"),
    )


def _failed_line(run: Run) -> excerpt.RecordedLine | None:
    """The user's line at which the first failing rank failed; None if unknown."""
    rank = first_to_fail(run)
    return None if rank is None or not rank.ended.at else excerpt.recorded_line(run, rank.ended.at)


# The ranks of the run

DRAWN = 24
"""Groups of ranks whose operations are drawn; heuristic: each timeline has about 60 KiB."""
NOTED = 48
"""Sets of ranks whose notes are listed; heuristic: more are found faster with `--rank`."""


@dataclass(frozen=True)
class State:
    """The state of a rank, shown as a square."""

    letter: str
    name: str
    """The class of its colour."""
    meaning: str


KILLED = State("K", "killed", "killed")
HUNG = State("H", "hung", "hung")
LOST = State("?", "lost", "status unknown")
FAILED = State("F", "failed", "failed")
OUTLYING = State("O", "outlying", "differs from its peers")
LEAKING = State("L", "leaking", "leak")
WELL = State("\u00b7", "well", "no leak")
STATES = (KILLED, HUNG, LOST, FAILED, OUTLYING, LEAKING, WELL)
"""Most urgent first."""
_ENDED = {EndKind.KILLED: KILLED, EndKind.HUNG: HUNG, EndKind.LOST: LOST}


@dataclass(frozen=True)
class RankOnPage:
    """A group of ranks that are alike, represented by the first."""

    group: RankGroup
    report: RankReport
    who: str
    """`rank 4, one of 128 alike`."""
    state: State
    figures: tuple[str, ...]
    each: tuple[tuple[str, ...], ...]
    """Of a group of several, the figures of each rank, its number first."""
    operations: Timeline | None


@dataclass(frozen=True)
class RanksOnPage:
    """All ranks."""

    groups: tuple[RankOnPage, ...]
    heads: tuple[str, ...]
    """Of the figures."""
    notes: tuple[tuple[str, tuple[str, ...]], ...]
    """(ranks, what is known of just these)."""
    more_notes: int
    """Sets of ranks whose notes are left out."""

    @property
    def strip(self) -> list[tuple[int, State]]:
        """(rank, state), in order."""
        return sorted(
            ((number, group.state) for group in self.groups for number in group.group.ranks),
            key=lambda square: square[0],
        )

    @property
    def counts(self) -> list[tuple[State, int]]:
        """(state, ranks in it)."""
        counts = Counter(state.name for _, state in self.strip)
        return [(state, counts[state.name]) for state in STATES if counts[state.name]]


def is_absolute(run: Run) -> bool:
    """On the CPU the counted bytes are the whole process's: only their growth is meaningful."""
    return bool(run.device) and not run.device.startswith("cpu")


def ranks_on_page(run: Run, groups: Sequence[RankGroup]) -> RanksOnPage:
    """Every rank of the run, including lost ones."""
    columns = columns_of([report for group in groups for report in group.reports])
    ranks = {rank.number: rank for rank in run.ranks}
    representatives = {group.representative for group in groups}
    notes = notes_together(groups, lambda report: _notes(report, report.number in representatives))
    return RanksOnPage(
        groups=tuple(
            _group(group, columns, _operations(ranks[group.representative]) if place < DRAWN else None)
            for place, group in enumerate(groups)
        ),
        heads=tuple(column.head for column in columns),
        notes=tuple((ranks_text(ranks), texts) for ranks, texts in sorted(notes[:NOTED])),
        more_notes=len(notes[NOTED:]),
    )


def _operations(rank: Rank) -> Timeline | None:
    return timeline(rank.operations, step_ends(rank))


def _group(group: RankGroup, columns: Sequence[Column], operations: Timeline | None) -> RankOnPage:
    listed = group.reports if len(group.reports) > 1 else ()
    return RankOnPage(
        group=group,
        report=group.report,
        who=like_text(group.representative, len(group.ranks) - 1),
        state=_state(group),
        figures=tuple(_unbroken(column.text(group.reports)) for column in columns),
        each=tuple((str(report.number), *(column.text((report,)) for column in columns)) for report in listed),
        operations=operations,
    )


def _unbroken(text: str) -> str:
    """A figure with line breaks only between minimum and maximum."""
    return text.replace(" ", "\u00a0").replace("\u00a0to\u00a0", " to\u00a0")


def _state(group: RankGroup) -> State:
    if group.badly:
        return _ENDED.get(group.report.rank.ended.how, FAILED)
    return OUTLYING if group.apart else LEAKING if group.leaks else WELL


def _notes(report: RankReport, whole: bool) -> Iterable[str]:
    yield from all_of(report) if whole else notes_of(report)
    if whole and report.rank.ended.log:
        yield f"log `{report.rank.ended.log}`"


def bytes_by_step(sightings: Iterable[Sighting]) -> tuple[tuple[int, int], ...]:
    """(step, bytes of all ranks), in order; a rank without a sighting at a step keeps its previous bytes."""
    seen = sorted(sightings, key=lambda sighting: (sighting.step, sighting.rank))
    held: dict[int, int] = {}
    together: dict[int, int] = {}
    for sighting in seen:
        held[sighting.rank] = sighting.bytes
        together[sighting.step] = sum(held.values())
    return tuple(together.items())


AROUND = 2
"""Lines of source on each side of a marked one; heuristic: more hide the path, fewer the context."""
MARKS: Mapping[LineMark, str] = {
    LineMark.HOLDS: "retains it",
    LineMark.ADDS: "adds to it",
}
"""Label of a marked line, so that its meaning does not depend on colour."""


@dataclass(frozen=True)
class HopOnPage:
    """A hop of a reference path."""

    hop: Hop
    position: int
    """On the trace."""
    colour: HopStatus
    """Red in a leak only: in a note the status of leaked objects is shown as unknown."""
    reason: str
    """"" if it is that of the previous hop."""
    suspect: bool
    """Whether its reference may be at fault."""
    cut: bool
    """Whether its reference is the one to cut."""
    closed: bool
    """Whether the cycle ends here."""
    last: bool
    """Whether it is the memory."""
    further: bool = False
    """Whether it is on a path beside the trace."""


@dataclass(frozen=True)
class StretchOnPage:
    """Consecutive hops, visible or folded."""

    hops: tuple[HopOnPage, ...]
    folded: bool


@dataclass(frozen=True)
class LineOnPage:
    """One of the user's own lines."""

    number: int
    text: str
    kind: LineMark
    mark: str
    """Its label; "" for unmarked lines."""
    begin: bool
    """The line to edit."""
    gap: bool
    """Whether omitted lines precede it."""

    @property
    def indent(self) -> int:
        """Leading spaces; the continuation of a broken line is indented as far."""
        return len(self.text) - len(self.text.lstrip(" "))


@dataclass(frozen=True)
class FindingOnPage:
    """A card."""

    finding: Finding
    spark: str
    stretches: tuple[StretchOnPage, ...]
    further_paths: tuple[tuple[HopOnPage, ...], ...]
    """The paths through references to cut that are not on the trace."""
    drawing: str
    is_undrawn: bool
    """There would be a drawing if `dot` were installed."""
    code: tuple[tuple[str, tuple[LineOnPage, ...]], ...]
    """(file, its lines)"""
    unrecorded: tuple[tuple[str, str], ...]
    """(what it does, place) of those whose source was not kept."""
    made_elsewhere: tuple[str, str] | None
    """(place, source line) of the allocation, if `code` does not show that line."""
    fix: LeakFix | None
    """The verified fix."""


def finding_on_page(run: Run, finding: Finding, svg: str = "", is_undrawn: bool = False) -> FindingOnPage:
    """The finding with everything that its card needs.

    Args:
        run: The run of the finding.
        finding: The finding.
        svg: The drawing of its reference path, if there is one.
        is_undrawn: Whether there would be a drawing if `dot` were installed.

    """
    code = tuple((shown.file, _lines_on_page(run, shown)) for shown in excerpts(run, finding, AROUND))
    return FindingOnPage(
        finding=finding,
        spark=sparkline(bytes_by_step(finding.sightings)),
        stretches=_stretches(finding),
        further_paths=_further_paths(finding),
        drawing=svg,
        is_undrawn=is_undrawn,
        code=code,
        unrecorded=_unrecorded(run, finding),
        made_elsewhere=_made_elsewhere(run, finding, code),
        fix=fix_text.verified_fix(run, finding),
    )


def _lines_on_page(run: Run, shown: Excerpt) -> tuple[LineOnPage, ...]:
    source = run.sources[shown.file]
    numbers = [line.number for line in shown.lines]
    before = [number - 1 for number in numbers[:1]] + numbers
    return tuple(
        LineOnPage(
            line.number,
            line.text,
            line.mark,
            MARKS.get(line.mark, ""),
            line.to_edit,
            any(text.strip() for text in source[previous : line.number - 1]),
        )
        for previous, line in zip(before, shown.lines, strict=False)
    )


def _made_elsewhere(
    run: Run, finding: Finding, code: tuple[tuple[str, tuple[LineOnPage, ...]], ...]
) -> tuple[str, str] | None:
    if not finding.made_at:
        return None
    kept = excerpt.recorded_line(run, where := finding.made_at[0])
    shown = {(file, line.number) for file, lines in code for line in lines}
    is_shown = kept is not None and (kept.name, kept.number) in shown
    return None if is_shown else (where, excerpt.source_line(run, where))


def _unrecorded(run: Run, finding: Finding) -> tuple[tuple[str, str], ...]:
    references = finding.cut.references if finding.cut is not None else ()
    places = [(MARKS[LineMark.HOLDS], reference.where) for reference in references]
    places += [(MARKS[LineMark.ADDS], place) for place, _ in excerpt.adding_lines(run, finding)]
    return tuple((does, place) for does, place in places if place and excerpt.recorded_line(run, place) is None)


def _stretches(finding: Finding) -> tuple[StretchOnPage, ...]:
    hops = _hops(finding)
    return tuple(
        StretchOnPage(hops[stretch.hops.start : stretch.hops.stop], stretch.is_folded)
        for stretch in folded_trace(finding)
    )


def _further_paths(finding: Finding) -> tuple[tuple[HopOnPage, ...], ...]:
    return tuple(
        tuple(
            HopOnPage(
                hop=hop,
                position=first + index,
                colour=_colour(finding, hop),
                reason="",
                suspect=finding_text.holds_by(hop, reference),
                cut=finding_text.holds_by(hop, reference),
                closed=False,
                last=index == len(reference.path) - 1,
                further=True,
            )
            for index, hop in enumerate(reference.path)
        )
        for first, reference in finding_text.further_paths(finding)
    )


def _colour(finding: Finding, hop: Hop) -> HopStatus:
    blames = finding.severity == Severity.LEAK
    return hop.status if blames or hop.status == HopStatus.EXPECTED else HopStatus.UNKNOWN


def _hops(finding: Finding) -> tuple[HopOnPage, ...]:
    at_fault, reasons = finding_text.suspects(finding), finding_text.new_reasons(finding)
    return tuple(
        HopOnPage(
            hop=hop,
            position=index,
            colour=_colour(finding, hop),
            reason=reasons[index],
            suspect=index in at_fault,
            cut=index == finding.cut_position,
            closed=finding_text.closes_cycle(finding, index),
            last=index == len(finding.trace) - 1,
        )
        for index, hop in enumerate(finding.trace)
    )
