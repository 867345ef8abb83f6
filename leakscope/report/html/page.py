"""The HTML page: one file, with its script and content security policy."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.findings.comm import first_to_fail
from leakscope.findings.facts import Severity
from leakscope.findings.model import Finding, Findings
from leakscope.findings.oom import ranks_out_of_memory
from leakscope.report import charts, drawing, messages, trace_marks
from leakscope.report.escape import cleaned
from leakscope.report.html import markup
from leakscope.report.html.cards import FindingOnPage, finding_on_page
from leakscope.report.html.chart_data import Timeline, memory_on_page, step_ends, timeline
from leakscope.report.memory_snapshot import device_section
from leakscope.report.messages.sections import leaks
from leakscope.report.ranks import (
    Column,
    RankGroup,
    RankStory,
    all_of,
    columns_of,
    notes_of,
    notes_together,
    rank_groups,
)
from leakscope.report.rendering import html_page
from leakscope.run.model import Rank, Run
from leakscope.run.rows import EndKind
from leakscope.units import like_text, ranks_text
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from markupsafe import Markup


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
    leaking = messages.leaks(findings)
    told_first = _told_first(run, findings)
    asides = _asides(findings, told_first)
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
        ended_badly=any(messages.ended_badly(rank) for rank in run.ranks),
        ranks=ranks_on_page(run, findings, groups),
        alike=alike,
        memory=memory_on_page(run, findings, groups, is_absolute(run)),
        device=device_section(run, alike),
        steps=messages.steps_of(run),
        headline=messages.headline(run, findings),
        failure=messages.failure_text(run),
        failed_line=_failed_line(run),
        is_told_below=not leaking
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
    """The findings of a clean run to which "Next" refers: growth, else avoidable memory."""
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
            "not leaks by themselves",
            messages.notes(findings),
            open=Severity.NOTE in kinds,
        ),
        Aside("Retained by libraries", "not leaks", messages.library(findings)),
        Aside(
            "Avoidable memory",
            "not leaks: retained longer than needed",
            messages.avoidable(findings),
            open=findings.avoidable_over is not None or Severity.AVOIDABLE in kinds,
        ),
        Aside("Suppressed", "known findings, not part of the verdict", findings.suppressed, prefix="suppressed-"),
    )


def _failed_line(run: Run) -> trace_marks.KeptLine | None:
    """The user's line at which the first failing rank failed; None if unknown."""
    rank = first_to_fail(run)
    return None if rank is None or not rank.ended.at else trace_marks.kept_line(run, rank.ended.at)


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
    story: RankStory
    who: str
    """`rank 4, one of 128 alike`."""
    state: State
    leaks: tuple[tuple[int, str], ...]
    """(number in the report, fingerprint)."""
    figures: tuple[str, ...]
    each: tuple[tuple[str, ...], ...]
    """Of a group of several, the figures of each rank, its number first."""
    operations: Timeline | None
    operations_svg: Markup | None


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


def ranks_on_page(run: Run, findings: Findings, groups: Sequence[RankGroup]) -> RanksOnPage:
    """Every rank of the run, including lost ones."""
    numbers = {finding.fingerprint: number for number, finding in enumerate(leaks(findings), 1)}
    columns = columns_of([story for group in groups for story in group.stories])
    ranks = {rank.number: rank for rank in run.ranks}
    representatives = {group.representative for group in groups}
    notes = notes_together(groups, lambda story: _notes(story, story.number in representatives))
    return RanksOnPage(
        groups=tuple(
            _group(group, numbers, columns, _operations(ranks[group.representative]) if place < DRAWN else None)
            for place, group in enumerate(groups)
        ),
        heads=tuple(column.head for column in columns),
        notes=tuple((ranks_text(ranks), texts) for ranks, texts in sorted(notes[:NOTED])),
        more_notes=len(notes[NOTED:]),
    )


def _operations(rank: Rank) -> Timeline | None:
    return timeline(rank.operations, step_ends(rank))


def _group(
    group: RankGroup, numbers: Mapping[str, int], columns: Sequence[Column], operations: Timeline | None
) -> RankOnPage:
    listed = group.stories if len(group.stories) > 1 else ()
    return RankOnPage(
        group=group,
        story=group.story,
        who=like_text(group.representative, len(group.ranks) - 1),
        state=_state(group),
        leaks=tuple(sorted((numbers[each], each) for each in group.fingerprints if each in numbers)),
        figures=tuple(_unbroken(column.text(group.stories)) for column in columns),
        each=tuple((str(story.number), *(column.text((story,)) for column in columns)) for story in listed),
        operations=operations,
        operations_svg=markup(operations.svg) if operations is not None else None,
    )


def _unbroken(text: str) -> str:
    """A figure with line breaks only between minimum and maximum."""
    return text.replace(" ", "\u00a0").replace("\u00a0to\u00a0", " to\u00a0")


def _state(group: RankGroup) -> State:
    if group.badly:
        return _ENDED.get(group.story.how, FAILED)
    return OUTLYING if group.apart else LEAKING if group.fingerprints else WELL


def _notes(story: RankStory, whole: bool) -> Iterable[str]:
    yield from all_of(story) if whole else notes_of(story)
    if whole and story.log:
        yield f"log `{story.log}`"
