"""When was which step, and which look of leakscope's? On the clock of the communication, in microseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from leakscope.record.kinds import Occasion
from leakscope.record.model import Look, Rank, Step
from leakscope.record.read.operations import column

MICROSECOND = 1e6
"""Of them in a second."""
_WITHIN = (Occasion.PEAK, Occasion.MEMORY, Occasion.OOM, Occasion.ASKED)
"""Looks taken in the middle of a step, whose length has them in it."""
_Issued = Mapping[int, Sequence[float]]
"""Step to the moments at which operations were issued in it, in order."""


@dataclass(frozen=True)
class Interval:
    """A step, or a look."""

    step: int
    begin: float
    end: float
    is_look: bool
    bytes: tuple[tuple[str, int], ...]
    """What was counted at its end, by name."""


def steps_and_looks(rank: Rank) -> tuple[Interval, ...]:
    """All steps of a rank with the looks after them, none reaching into the next; then the looks within steps.

    Where no beginning was recorded, a step lies around the operations that were issued in it, and one without any
    follows what comes before it.
    """
    issued = _issued(rank)
    after: dict[int, list[Look]] = {}
    for look in rank.looks:
        if look.occasion not in _WITHIN:
            after.setdefault(look.step, []).append(look)
    placed: list[Interval] = []
    now = _first(rank, after, issued)
    for step in rank.steps:
        begin = _begin(step, issued, now)
        end = max(begin + _length(step.seconds), issued.get(step.number, (begin,))[-1])
        placed.append(Interval(step.number, begin, end, False, _known(step)))
        for look in after.pop(step.number, ()):
            placed.append(_look(look, placed[-1].end))
        now = placed[-1].end
    for look in (look for rest in after.values() for look in rest):  # of steps whose line is lost
        placed.append(_look(look, placed[-1].end if placed else 0.0))
    steps = {one.step: one for one in placed if not one.is_look}
    within = [look for look in rank.looks if look.occasion in _WITHIN and look.step in steps]
    return (*_apart(placed), *(_inside(look, steps[look.step], issued) for look in within))


def _issued(rank: Rank) -> _Issued:
    issued: dict[int, list[float]] = {}
    for step, moment in zip(column(rank.operations, "step"), column(rank.operations, "issued"), strict=True):
        if moment is not None and math.isfinite(moment):
            issued.setdefault(step, []).append(moment * MICROSECOND)
    return {step: sorted(moments) for step, moments in issued.items()}


def _first(rank: Rank, after: Mapping[int, Sequence[Look]], issued: _Issued) -> float:
    """When the first step began, as told by the first of which something is known."""
    past = 0.0
    for step in rank.steps:
        if step.began is not None or step.number in issued:
            return _begin(step, issued, -math.inf) - past
        past += _length(step.seconds) + sum(_length(look.stopped_seconds) for look in after.get(step.number, ()))
    return 0.0


def _begin(step: Step, issued: _Issued, now: float) -> float:
    """As recorded; else as soon as what comes before it has ended, so that its operations lie in it."""
    if step.began is not None and math.isfinite(step.began):
        return step.began * MICROSECOND
    if step.number not in issued:
        return now
    moments = issued[step.number]
    return min(max(now, moments[-1] - _length(step.seconds)), moments[0])


def _look(look: Look, begin: float) -> Interval:
    told = (("counted bytes", look.counted_bytes), ("bytes in storages", look.explained_bytes))
    known = tuple((name, size) for name, size in told if size is not None)
    return Interval(look.step, begin, begin + _length(look.stopped_seconds), True, known)


def _known(step: Step) -> tuple[tuple[str, int], ...]:
    told = (("counted bytes", step.counted_bytes), ("peak bytes", step.peak_bytes))
    return tuple((name, size) for name, size in told if size is not None)


def _inside(look: Look, step: Interval, issued: _Issued) -> Interval:
    """In the middle of the longest time in which the step issued nothing: nothing happens while a look is taken."""
    moments = [step.begin, *(at for at in issued.get(look.step, ()) if step.begin < at < step.end), step.end]
    begin, end = max(pairwise(moments), key=lambda gap: gap[1] - gap[0])
    half = min(_length(look.stopped_seconds), end - begin) / 2
    told = _look(look, 0.0)
    return replace(told, begin=(begin + end) / 2 - half, end=(begin + end) / 2 + half)


def _apart(placed: Sequence[Interval]) -> list[Interval]:
    """None of them reaching into the next one, whose beginning is better known than an end."""
    apart: list[Interval] = []
    next_begin = math.inf
    for one in reversed(placed):
        begin = min(one.begin, next_begin)
        apart.append(replace(one, begin=begin, end=min(max(one.end, begin), next_begin)))
        next_begin = begin
    return apart[::-1]


def _length(seconds: float) -> float:
    return seconds * MICROSECOND if math.isfinite(seconds) and seconds > 0 else 0.0
