"""Ranks on the page: figures, groups, and the operations of one rank of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.findings.model import Findings
from leakscope.report.html.filters import as_drawing
from leakscope.report.html.timeline import Timeline, step_ends, timeline
from leakscope.report.messages.sections import leaks
from leakscope.report.ranks import Column, RankGroup, RankStory, all_of, columns_of, notes_of, notes_together
from leakscope.run.model import Rank, Run
from leakscope.run.rows import EndKind
from leakscope.units import like_text, ranks_text

if TYPE_CHECKING:
    from markupsafe import Markup

DRAWN = 24
"""Groups of ranks, chosen, whose operations are drawn."""
NOTED = 48
"""Sets of ranks, chosen, whose notes are told."""


@dataclass(frozen=True)
class State:
    """What a rank did, as a square."""

    letter: str
    name: str
    """The class of its colour."""
    meaning: str


KILLED = State("K", "killed", "killed")
HUNG = State("H", "hung", "hung")
LOST = State("?", "lost", "left no word")
FAILED = State("F", "failed", "failed")
OUTLYING = State("O", "outlying", "far from its peers")
LEAKING = State("L", "leaking", "has a leak")
WELL = State("\u00b7", "well", "has no leak")
STATES = (KILLED, HUNG, LOST, FAILED, OUTLYING, LEAKING, WELL)
"""Those to look at first in front."""
_ENDED = {EndKind.KILLED: KILLED, EndKind.HUNG: HUNG, EndKind.LOST: LOST}


@dataclass(frozen=True)
class RankOnPage:
    """A group of ranks as the page sets it, by the first of them."""

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
    """All ranks as the page sets them."""

    groups: tuple[RankOnPage, ...]
    heads: tuple[str, ...]
    """Of the figures."""
    notes: tuple[tuple[str, tuple[str, ...]], ...]
    """(ranks, what is known of just these)."""
    more_notes: int
    """Sets of ranks whose notes are left out."""

    @property
    def strip(self) -> list[tuple[int, State]]:
        """What each rank did, in order."""
        return sorted(
            ((number, group.state) for group in self.groups for number in group.group.ranks),
            key=lambda square: square[0],
        )

    @property
    def counts(self) -> list[tuple[State, int]]:
        """How many ranks did what."""
        counts = Counter(state.name for _, state in self.strip)
        return [(state, counts[state.name]) for state in STATES if counts[state.name]]


def is_absolute(run: Run) -> bool:
    """On CPU the counted bytes are the whole process's: only their growth means anything."""
    return bool(run.device) and not run.device.startswith("cpu")


def ranks_on_page(run: Run, findings: Findings, groups: Sequence[RankGroup]) -> RanksOnPage:
    """Every rank of the run, lost ones included."""
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
        operations_svg=as_drawing(operations.svg) if operations is not None else None,
    )


def _unbroken(text: str) -> str:
    """A figure whose lines end between the smallest and the largest only."""
    return text.replace(" ", "\u00a0").replace("\u00a0to\u00a0", " to\u00a0")


def _state(group: RankGroup) -> State:
    if group.badly:
        return _ENDED.get(group.story.how, FAILED)
    return OUTLYING if group.apart else LEAKING if group.fingerprints else WELL


def _notes(story: RankStory, whole: bool) -> Iterable[str]:
    yield from all_of(story) if whole else notes_of(story)
    if whole and story.log:
        yield f"log `{story.log}`"
