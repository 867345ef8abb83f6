"""What does the page show of each rank: its figures and its operations?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.findings.model import Findings
from leakscope.record.model import Rank, Run
from leakscope.report.html.filters import as_drawing
from leakscope.report.html.timeline import Timeline, timeline
from leakscope.report.per_rank import RankStory, rank_stories

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class RankOnPage:
    """One rank as the page sets it."""

    story: RankStory
    operations: Timeline | None
    operations_svg: Markup | None


def is_absolute(run: Run) -> bool:
    """On CPU the counted bytes are the whole process's: only their growth means anything."""
    return bool(run.device) and not run.device.startswith("cpu")


def ranks_on_page(run: Run, findings: Findings) -> list[RankOnPage]:
    """Every rank of the run, lost ones included, in order."""
    return [_rank(rank, story) for rank, story in zip(run.ranks, rank_stories(run, findings), strict=True)]


def _rank(rank: Rank, story: RankStory) -> RankOnPage:
    operations = timeline(rank.operations)
    return RankOnPage(
        story=story,
        operations=operations,
        operations_svg=as_drawing(operations.svg) if operations is not None else None,
    )
