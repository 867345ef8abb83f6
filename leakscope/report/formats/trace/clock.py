"""When was which step, and how late did the clock of the communication begin?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from leakscope.record.model import Rank

MICROSECOND = 1e6
"""Of them in a second."""


@dataclass(frozen=True)
class Interval:
    """A step, or a look after it; in microseconds since the first step began."""

    step: int
    begin: float
    end: float
    is_look: bool
    bytes: tuple[tuple[str, int], ...]
    """What was counted at its end, by name."""


def steps_and_looks(rank: Rank) -> tuple[Interval, ...]:
    """All steps of a rank, each followed by the looks taken after it: what is recorded of them is their lengths."""
    looks: dict[int, list[Interval]] = {}
    for look in rank.looks:
        told = _known(("counted bytes", look.counted_bytes), ("bytes in storages", look.explained_bytes))
        looks.setdefault(look.step, []).append(Interval(look.step, 0.0, _length(look.stopped_seconds), True, told))
    lengths: list[Interval] = []
    for step in rank.steps:
        told = _known(("counted bytes", step.counted_bytes), ("peak bytes", step.peak_bytes))
        lengths += [Interval(step.number, 0.0, _length(step.seconds), False, told), *looks.pop(step.number, [])]
    lengths += [look for rest in looks.values() for look in rest]  # of steps whose line is lost
    ends = [0.0, *accumulate(one.end for one in lengths)]
    return tuple(replace(one, begin=begin, end=end) for one, (begin, end) in zip(lengths, pairwise(ends), strict=True))


def _known(*figures: tuple[str, int | None]) -> tuple[tuple[str, int], ...]:
    return tuple((name, size) for name, size in figures if size is not None)


def _length(seconds: float) -> float:
    return seconds * MICROSECOND if math.isfinite(seconds) and seconds > 0 else 0.0


def comm_delay(rank: Rank, intervals: tuple[Interval, ...]) -> float:
    """Microseconds to add to a moment of the communication, which has a clock of its own: such that operations lie in
    the steps that issued them. Where no delay does that for all, the middle of what each step asks for.
    """
    steps = {interval.step: interval for interval in intervals if not interval.is_look}
    issued: dict[int, list[float]] = {}
    for operation in rank.operations:
        if operation.step in steps and math.isfinite(operation.issued):
            issued.setdefault(operation.step, []).append(operation.issued * MICROSECOND)
    if not issued:
        return 0.0
    least = max(steps[number].begin - min(moments) for number, moments in issued.items())
    most = min(steps[number].end - max(moments) for number, moments in issued.items())
    return (least + most) / 2
