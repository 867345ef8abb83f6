"""When did the program itself run? The pauses that leakscope made are left out of the axis of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.record.kinds import Occasion
from leakscope.record.model import Rank
from leakscope.record.read.operations import column

_SEEN = 1e-3
"""Seconds below which a pause is none."""
LAST = 6
"""Steps, chosen, that the ends are asked for: a few more than are drawn."""
Span = tuple[float, float]
"""From and to, in seconds of the recording, as the moments of comm operations."""


@dataclass(frozen=True)
class StepEnd:
    """The end of a step, and what leakscope did before the next one."""

    step: int
    moment: float
    resumed: float
    """When the next step began; the same moment where there was no pause."""
    exact: bool
    """False where it was not recorded, and is told by what was seen before and after."""


def step_ends(rank: Rank, last: int = LAST) -> tuple[StepEnd, ...]:
    """The ends of the last steps that have one after them, in order."""
    begins = {step.number: (step.began, step.seconds) for step in rank.steps}
    numbers = sorted(begins.keys() | set(column(rank.operations, "step")))[-last:]
    issued: dict[int, Span] = {}
    events: tuple[float, ...] = ()
    if any(begins.get(number, (None, 0.0))[0] is None for number in numbers):
        issued = _issued(rank, numbers)
        events = _events(rank, min((first for first, _ in issued.values()), default=math.inf))
    looked = {look.step: look.seconds for look in rank.looks if look.occasion == Occasion.STEP}
    found = []
    for a, b in pairwise(numbers):
        (began, seconds), (then, _) = begins.get(a, (None, 0.0)), begins.get(b, (None, 0.0))
        if began is not None and then is not None:
            found.append(StepEnd(a, began + seconds, max(then, began + seconds), True))
        elif a in issued and b in issued and issued[a][1] <= issued[b][0]:
            found.append(_guessed(a, (issued[a][1], issued[b][0]), looked.get(a, 0.0), events))
    return tuple(found)


def _issued(rank: Rank, steps: Sequence[int]) -> dict[int, Span]:
    """When the first and the last operation of each step were issued."""
    spans: dict[int, Span] = {}
    for step, moment in zip(column(rank.operations, "step"), column(rank.operations, "issued"), strict=True):
        if step >= steps[0] and math.isfinite(moment):
            first, last = spans.get(step, (math.inf, -math.inf))
            spans[step] = min(first, moment), max(last, moment)
    return spans


def _events(rank: Rank, begin: float) -> tuple[float, ...]:
    """Moments from `begin` on at which something happened to an operation."""
    names = ("issued", "waited", "completed", "tensor_died", "storage_died", "work_died")
    moments = (moment for name in names for moment in column(rank.operations, name))
    return tuple(sorted(moment for moment in moments if moment is not None and begin <= moment < math.inf))


def _guessed(step: int, gap: Span, seconds: float, events: Sequence[float]) -> StepEnd:
    """Between the last operation of a step and the first of the next: nothing happens while a look is taken."""
    inside = [gap[0], *(moment for moment in events if gap[0] < moment < gap[1]), gap[1]]
    begin, end = max(pairwise(inside), key=lambda span: span[1] - span[0])
    middle, half = (begin + end) / 2, min(seconds, end - begin) / 2
    return StepEnd(step, middle - half, middle + half, False)


def own_seconds(begin: float, end: float, ends: Sequence[StepEnd]) -> float:
    """Seconds from one moment to a later one, leakscope's pauses left out."""
    return end - begin - sum(max(0.0, min(end, e.resumed) - max(begin, e.moment)) for e in ends)


@dataclass(frozen=True)
class Axis:
    """Places on an axis of the program's own time; each pause has the width of a mark."""

    begin: float
    end: float
    pauses: tuple[Span, ...]
    left: float
    width: float
    mark: float
    """Width of a pause's mark."""

    @property
    def seconds(self) -> float:
        """The program's own time from one end to the other."""
        return max(self.end - self.begin - sum(b - a for a, b in self.pauses), 1e-6)

    def own(self, moment: float) -> float:
        """Seconds of the program's own from the begin to a moment, those of leakscope left out."""
        moment = min(max(moment, self.begin), self.end)
        return moment - self.begin - sum(max(0.0, min(moment, b) - a) for a, b in self.pauses)

    def across(self, moment: float) -> float:
        """Where a moment is drawn."""
        moment = min(max(moment, self.begin), self.end)
        marks = sum(min(max((moment - a) / (b - a), 0.0), 1.0) for a, b in self.pauses)
        return self.left + self.own(moment) * self._scale + marks * self.mark

    def at(self, own: float) -> float:
        """Where so many seconds of the program's own are drawn."""
        gone = [(self.own(a), self.mark) for a, _ in self.pauses]
        return self.left + own * self._scale + sum(mark for until, mark in gone if until < own)

    @property
    def _scale(self) -> float:
        return (self.width - self.mark * len(self.pauses)) / self.seconds


def axis(begin: float, end: float, ends: Sequence[StepEnd], left: float, width: float, mark: float) -> Axis:
    """The axis from one moment to another, without leakscope's pauses in between; none of them overlaps another."""
    end = max(end, begin + 1e-6)
    pauses: list[Span] = []
    for each in sorted(ends, key=lambda each: each.moment):
        a, b = max(each.moment, begin, *(until for _, until in pauses)), min(each.resumed, end)
        if b - a > _SEEN:
            pauses.append((a, b))
    return Axis(begin, end, tuple(pauses), left, width, mark)
