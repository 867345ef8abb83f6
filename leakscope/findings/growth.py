"""The growth of a series of bytes over heap snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median, median_low

MIN_SNAPSHOTS = 3
"""Minimum snapshots after warm-up to judge growth: two consecutive rises. At 2 everything allocated lazily grows, at 5
a `--steps 12` run can report no leak that is seen at every second step.
"""
STEADY_SHARE = 0.25
"""Minimum ratio of the slowest stretch of steady growth to the fastest. Growth every second step, seen over two steps
and over three, has 0.5 to 1; a rise at a compilation and little after it has less than 0.1.
"""
_MAX_SPAN_OF_PERIODS = 40
"""Maximum steps between snapshots to tell a period: over more, any period of up to ten steps fits."""
_MIN_INCREMENT_SHARE = 0.8
"""Minimum share of the largest periodic increment that the others have. At 0.4 two rises of which one is twice the
other fit a period, at 1 a list with one item of another size does not.
"""
_MIN_SLOPE_SHARE = 0.5
"""Minimum share of its fastest stretch that each stretch of periodic growth has: one item every second step gives 1/3
to 2/3 an item a step over two to four steps. At 0.25 something that fills a bound ever more slowly qualifies.
"""
PERIODS = 3
"""Minimum number of periodic increments to be certain: two of them fit any period."""


@dataclass(frozen=True)
class Series:
    """Bytes of one group at each judged snapshot of one rank; 0 where it does not exist."""

    steps: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def grows(self) -> bool:
        """Whether it never shrinks and has grown at two of the last snapshots at least: at each of them, or every few
        steps and still continuing.
        """
        return self.grew_lately or (self._rises and bool(self._periods))

    @property
    def grew_lately(self) -> bool:
        """As `grows`, judged by the pauses alone: what stopped has a bound, and a pause at the end longer than all
        before it is no growth, even if the snapshots fit periodic growth.

        A pause shorter than the steps between two snapshots would not have been seen before the end.
        """
        *between, last = self._steps_without_growth
        return self._rises and last <= max(*between, self._unseen)

    @property
    def _unseen(self) -> int:
        """Steps without growth possible between two snapshots that show growth, if it does not level off."""
        if min(self._slopes, default=0.0) < _MIN_SLOPE_SHARE * max(self._slopes, default=1.0):
            return 0
        return min((t - s for (s, t), (a, b) in self._intervals if b > a), default=1) - 1

    @property
    def _intervals(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Steps and bytes between each two consecutive snapshots."""
        return list(zip(pairwise(self.steps), pairwise(self.bytes), strict=True))

    @property
    def pause_at_end(self) -> int:
        """Steps without growth at the end."""
        return self._steps_without_growth[-1]

    @property
    def _rises(self) -> bool:
        few = len(self.bytes) < MIN_SNAPSHOTS or len(self._slopes) < MIN_SNAPSHOTS - 1
        return not few and all(b >= a for a, b in pairwise(self.bytes))

    @property
    def per_step(self) -> float:
        """Bytes per step: the median slope between snapshots with growth, since gc may have emptied it in between; over
        all steps if it grows every few of them.
        """
        if not self._slopes:
            return 0.0
        if self.grows and self.has_pauses:
            grown = (self.bytes[-1] - self.bytes[0]) / (self.steps[-1] - self.steps[0])
            return median(rate for rate, _ in self._periods) if self._periods else grown
        return float(median(self._slopes))

    @property
    def has_pauses(self) -> bool:
        """Whether it did not grow at each snapshot."""
        return any(self._steps_without_growth)

    @property
    def has_enough_rises(self) -> bool:
        """Whether it grew at each snapshot; or at three of them, with pauses of which the last is not the longest; or
        as often with a period: the last snapshot comes one step after the previous one, which may be in its pause.
        """
        if not self.has_pauses or (len(self._slopes) >= MIN_SNAPSHOTS and self.grew_lately):
            return True
        return self.grows and min((times for _, times in self._periods), default=0) >= PERIODS

    @property
    def steady(self) -> bool:
        """Whether no stretch between two snapshots grew far less than the others: not one rise, such as at a
        compilation, and then none.
        """
        return bool(self._slopes) and min(self._slopes) >= STEADY_SHARE * max(self._slopes)

    @property
    def _slopes(self) -> list[float]:
        return [
            (b - a) / (t - s)
            for s, t, a, b in zip(self.steps, self.steps[1:], self.bytes, self.bytes[1:], strict=False)
            if b > a and t > s
        ]

    @property
    def _steps_without_growth(self) -> list[int]:
        """Steps without growth before each rise, and after the last."""
        pauses = [0]
        for s, t, a, b in zip(self.steps, self.steps[1:], self.bytes, self.bytes[1:], strict=False):
            if b > a:
                pauses.append(0)
            else:
                pauses[-1] += t - s
        return pauses

    @cached_property
    def _periods(self) -> list[tuple[float, int]]:
        """Bytes per step and number of increments for each period that the snapshots fit: equal increments, at the
        snapshots with a rise and at no other.
        """
        rates = []
        span = self.steps[-1] - self.steps[0]
        for period in range(2, span if span <= _MAX_SPAN_OF_PERIODS else 0):
            for first in range(period):
                came = [(t - first) // period - (s - first) // period for s, t in pairwise(self.steps)]
                each = [
                    (b - a) / times if times else float(b - a)
                    for (a, b), times in zip(pairwise(self.bytes), came, strict=True)
                ]
                risen = [size for size, times in zip(each, came, strict=True) if times]
                if (
                    not any(size for size, times in zip(each, came, strict=True) if not times)
                    and risen
                    and min(risen) >= _MIN_INCREMENT_SHARE * max(risen) > 0
                ):
                    rates.append((sum(risen) / len(risen) / period, sum(came)))
        return rates

    @property
    def total(self) -> int:
        """Bytes between the smallest and the largest snapshot."""
        return max(self.bytes, default=0) - min(self.bytes, default=0)

    def continues(self, min_per_step: int) -> bool:
        """Whether more than one of its rises was this large: a cache fills at once and then gains a little."""
        return not self._slopes or median_low(self._slopes) >= min_per_step

    def is_leak(self, min_per_step: int) -> bool:
        """Whether it is large enough for a verdict, not only a note."""
        return self.per_step >= min_per_step and self.total >= self.floor(min_per_step)

    def floor(self, min_per_step: int) -> int:
        """Total bytes below which it is not a leak: `min_per_step` for each step between its snapshots."""
        return min_per_step * max(self.steps[-1] - self.steps[0], 1) if self.steps else min_per_step


def series(steps: Sequence[int], bytes_at: dict[int, int]) -> Series:
    """The bytes at each of the steps, 0 where there were none."""
    return Series(tuple(steps), tuple(bytes_at.get(step, 0) for step in steps))
