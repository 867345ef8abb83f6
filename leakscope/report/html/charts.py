"""The chart of memory as the page sets it: which ranks have a line, and which of them can be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.findings.categories import CATEGORIES
from leakscope.findings.model import Findings
from leakscope.findings.thresholds import Thresholds
from leakscope.record.model import Run
from leakscope.report.html.filters import as_drawing
from leakscope.report.html.memory import RankMemory, memory_of
from leakscope.report.html.plots import layer_colours, memory_chart
from leakscope.report.rank_groups import RankGroup

if TYPE_CHECKING:
    from markupsafe import Markup

LINES = 24
"""Groups of ranks, chosen, that have a line; those that stand out come first."""
CHOICES = 8
"""Groups of ranks, chosen, whose ledger and looks are shown where one of them is chosen; the page's style knows as
many."""


@dataclass(frozen=True)
class Choice:
    """One rank that can be chosen, for those that did the same."""

    memory: RankMemory
    colours: tuple[int, ...]
    """Of its layers, among the page's."""
    categories: tuple[str, ...]
    """What its memory is, of all that it ever was at a look."""


@dataclass(frozen=True)
class MemoryOnPage:
    """The chart and what stands beside it."""

    svg: Markup | None
    choices: tuple[Choice, ...]
    chosen: int
    """The number, from 1, of the one that is shown at first."""
    left_out: int
    """Groups that have no line."""


def memory_on_page(run: Run, findings: Findings, groups: Sequence[RankGroup], absolute: bool) -> MemoryOnPage | None:
    """The chart of all groups of ranks; None where nothing is known of any.

    First shown is the one whose cuts would free most, or the one that grew most.
    """
    ranks = {rank.number: rank for rank in run.ranks}
    known = [memory_of(run, ranks[group.representative], findings, absolute, group.ranks) for group in groups]
    found = [memory for memory in known if memory is not None]
    found = [memory for memory in found if memory.has_line] or found[:CHOICES]
    if not found:
        return None
    most = max(found, key=lambda memory: (memory.saved, memory.growth, -memory.number))
    others = [memory for memory in found if memory is not most]
    choices = sorted([most, *others[: CHOICES - 1]], key=lambda memory: memory.number)
    drawn = [*choices, *others[CHOICES - 1 : LINES - 1]]
    chosen = choices.index(most) + 1
    least = Thresholds(run.min_bytes).counted * max(memory.line[-1][0] - memory.line[0][0] for memory in drawn)
    return MemoryOnPage(
        svg=as_drawing(memory_chart(drawn, len(choices), absolute, least, chosen) if most.has_line else ""),
        choices=tuple(Choice(memory, layer_colours(memory.layers), _categories(memory)) for memory in choices),
        chosen=chosen,
        left_out=len(found) - len(drawn),
    )


def _categories(memory: RankMemory) -> tuple[str, ...]:
    names = {name for look in memory.looks for name, size in look.categories.items() if size}
    known = [name for name in CATEGORIES if name in names]
    return (*known, *sorted(names - set(known)))
