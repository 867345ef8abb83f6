"""What does the page show of each rank: its figures, its memory over the steps, its operations?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.findings.model import Findings
from leakscope.record.kinds import Occasion
from leakscope.record.model import Rank, Run
from leakscope.report.html.filters import as_drawing
from leakscope.report.html.plots import categories_plot, categories_shown, category_series, memory_plot
from leakscope.report.html.timeline import Timeline, timeline
from leakscope.report.per_rank import RankStory, rank_stories

if TYPE_CHECKING:
    from markupsafe import Markup


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


def is_absolute(run: Run) -> bool:
    """On CPU the counted bytes are the whole process's: only their growth means anything."""
    return bool(run.device) and not run.device.startswith("cpu")


def ranks_on_page(run: Run, findings: Findings) -> list[RankOnPage]:
    """Every rank of the run, lost ones included, in order."""
    return [_rank(run, rank, story) for rank, story in zip(run.ranks, rank_stories(run, findings), strict=True)]


def _rank(run: Run, rank: Rank, story: RankStory) -> RankOnPage:
    by_step = story.summary.categories_by_step
    looks = {look.step: look for look in rank.looks if look.occasion in (Occasion.STEP, Occasion.LAST)}
    operations = timeline(rank.operations)
    return RankOnPage(
        story=story,
        memory=as_drawing(memory_plot(rank, is_absolute(run))),
        stacked=as_drawing(categories_plot(rank.number, story.summary)),
        series=category_series(categories_shown(story.summary)),
        looks=tuple(
            (step, sizes, looks[step].explained_bytes, looks[step].counted_bytes)
            if step in looks
            else (step, sizes, None, None)
            for step, sizes in by_step
        ),
        operations=operations,
        operations_svg=as_drawing(operations.svg) if operations is not None else None,
    )
