"""How much more is counted at the end of each step? By the counters of all steps, not only of those looked at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, median

from leakscope.record.kinds import Occasion
from leakscope.record.model import Rank, Step
from leakscope.record.rows.lifetimes import LifetimesUnjudged, WatchedStep

_FEW = 3
"""Steps between which nothing is told of a rate; chosen."""
_ENOUGH = 6
"""Steps that were neither looked at nor watched, enough to leave all others out; chosen."""
_BLOCKS = 5
"""Stretches of steps whose median tells the rate, so that one rise, or two, do not; chosen."""
_STEADY = 0.25
"""Share of the median rate that each stretch of a steady growth reaches; chosen."""

_TO_AND_FRO = 0.5
"""Share of the rate that the levels of few steps have to have risen by; chosen."""


def counted_steps(rank: Rank) -> list[Step]:
    """The steps whose counted bytes are of the device that was counted last."""
    counted = [step for step in rank.steps if step.counted_bytes is not None]
    return [step for step in counted if step.counted_on == counted[-1].counted_on]


def counted_rate(rank: Rank, warmup: int) -> float | None:
    """Bytes a step after warm-up: the median over stretches of steps; None where too few were counted.

    A rise once, at a compilation or the first use of a library, moves a mean and not this.
    """
    rises = _rises(rank, warmup)
    stretches = _stretches(rises)
    if not stretches:
        return None
    rate, at_most = median(stretches), _at_most(rank, warmup)
    return at_most if len(rises) < _BLOCKS * _FEW and at_most < _TO_AND_FRO * rate else rate


def rate_at_end(rank: Rank, warmup: int) -> float | None:
    """The same, or less where the last stretch or all steps together rose less: what has stopped, or is let go of again
    and again, does not go on.
    """
    rises = _rises(rank, warmup)
    stretches = _stretches(rises)
    rate = counted_rate(rank, warmup)
    return None if rate is None else min(rate, stretches[-1], mean(rises))


def rises_steadily(rank: Rank, warmup: int) -> bool:
    """Whether no stretch of the steps rose far less than the others."""
    return is_steady(_rises(rank, warmup))


def is_steady(rises: Sequence[float]) -> bool:
    """The same of rises one after the other, whatever has risen."""
    stretches = _stretches(rises)
    return len(stretches) >= _FEW and min(stretches) >= _STEADY * median(stretches) > 0


def _at_most(rank: Rank, warmup: int) -> float:
    """Bytes a step by which the later half of the steps came higher than the earlier one, or 0.

    Where steps are few, those left to tell of may all be rises of what comes and goes, as a thread's buffers.
    """
    sizes = [step.counted_bytes or 0 for step in counted_steps(rank) if step.number > warmup]
    half = len(sizes) // 2
    return max(max(sizes[half:]) - max(sizes[:half]), 0) / half


def _rises(rank: Rank, warmup: int) -> list[int]:
    """Rise of the counted bytes at each step after warm-up; looked at or watched ones are left out where enough are
    left.
    """
    counted = [step for step in counted_steps(rank) if step.number > warmup]
    rises = {
        b.number: (b.counted_bytes or 0) - (a.counted_bytes or 0)
        for a, b in pairwise(counted)
        if b.number == a.number + 1  # the line of a step may be damaged
    }
    watched = {row.step for row in rank.lifetimes if isinstance(row, WatchedStep | LifetimesUnjudged)}
    watched |= {look.step + 1 for look in rank.looks if look.occasion == Occasion.PEAK}
    disturbed = {number + more for number in watched for more in (-1, 0, 1)}  # two are watched, the next lets go
    unwatched = {number: rise for number, rise in rises.items() if number not in disturbed}
    looked = {look.step + 1 for look in rank.looks}  # what a look leaves is counted at the end of the next step
    plain = {number: rise for number, rise in unwatched.items() if number not in looked}
    for some in (plain, unwatched):
        if len(some) >= _ENOUGH:
            return list(some.values())
    return list((unwatched if len(unwatched) >= _FEW else rises).values())


def _stretches(rises: Sequence[float]) -> list[float]:
    """Mean rise of each stretch, all about as long; of each step where there are few."""
    if len(rises) < _FEW:
        return []
    count = min(_BLOCKS, len(rises) // _FEW)
    if count < _FEW:
        return [float(rise) for rise in rises]
    ends = [round(len(rises) * k / count) for k in range(count + 1)]
    return [mean(rises[a:b]) for a, b in pairwise(ends)]
