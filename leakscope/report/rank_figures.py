"""Which figures of ranks are set beside each other?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from leakscope.report.per_rank import RankStory
from leakscope.report.wording import bytes_span, count_span

_ALWAYS = 3
"""The first columns; the others stand there where some rank has something in them."""


@dataclass(frozen=True)
class Column:
    """One figure of each rank."""

    head: str
    of: Callable[[RankStory], float | None]
    span: Callable[[Iterable[float]], str] = bytes_span

    def text(self, stories: Iterable[RankStory]) -> str:
        """From the smallest to the largest where they differ; `-` where it is not known."""
        listed = [self.of(story) for story in stories]
        known = [value for value in listed if value is not None]
        return " or ".join([*([self.span(known)] if known else []), *(["-"] if len(known) < len(listed) else [])])


COLUMNS = (
    Column("steps", lambda story: story.steps, count_span),
    Column("allocated", lambda story: story.counted_bytes),
    Column("growth/step", lambda story: story.growth_per_step),
    Column("in tensors", lambda story: story.explained_bytes),
    Column("leaked", lambda story: story.leaked_bytes),
    Column("peak", lambda story: story.summary.peak_bytes),
    Column("gc would free", lambda story: story.predicted_bytes),
    Column("gc freed", lambda story: story.gc_freed_bytes),
)
"""Allocated: what the process has of its allocator at the last look. In tensors: of the storages found there."""


def columns_of(stories: Sequence[RankStory], whole: bool = False) -> tuple[Column, ...]:
    """Without those in which no rank has anything, but for the first; all where the `whole` is asked for."""
    return tuple(
        column
        for place, column in enumerate(COLUMNS)
        if whole or place < _ALWAYS or any(column.of(story) for story in stories)
    )
