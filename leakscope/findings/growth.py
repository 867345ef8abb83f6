"""The growth of a series of bytes over heap snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median, median_low

MIN_LOOKS = 3
"""Fewer snapshots after warm-up say nothing about growth: two rises in a row. At 2 all that is allocated lazily grows,
at 5 a `--steps 12` run can call nothing a leak that is seen at every second step.
"""
STEADY_SHARE = 0.25
"""The slowest stretch of a steady growth is at least this share of the fastest. Growth every second step, seen over two
steps and over three, has 0.5 to 1; a rise at a compilation and little after it has less than 0.1.
"""
_SPAN = 40
"""Snapshots over more steps than this are too far apart to tell a period by: between two of them any period of up to
ten steps fits.
"""
_ALIKE = 0.8
"""What comes once in a fixed number of steps is at least this share of what came most at a time. At 0.4 two rises of
which one is twice the other fit a period, at 1 a list with one item of another size does not.
"""
_LEVEL = 0.5
"""Share of its fastest stretch that each of a growth with a period has: one item every second step gives 1/3 to 2/3 an
item a step over two to four steps. At 0.25 what fills a bound ever more slowly is taken for one.
"""
PERIODS = 3
"""Times that something must have come, in step with a period, to be certain: two of them fit any period."""


@dataclass(frozen=True)
class Series:
    """Bytes of one group at each judged look of one rank; 0 where it was not there."""

    steps: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def grows(self) -> bool:
        """Never less, and more at two of the last looks at least: at each of them, or every few steps and still going
        on.
        """
        return self.grew_lately or (self._rises and bool(self._periods))

    @property
    def grew_lately(self) -> bool:
        """As `grows`, by the pauses alone: what came to rest has a bound, and a pause at the end that is longer than
        all
        before it is no growth, though the looks may fit what comes once in a fixed number of steps.

        A pause that is shorter than the steps between two looks would not have been seen before the end.
        """
        *between, last = self._pauses
        return self._rises and last <= max(*between, self._unseen)

    @property
    def _unseen(self) -> int:
        """Steps without growth that there may be between two looks that saw it grow, where it does not level off."""
        if min(self._slopes, default=0.0) < _LEVEL * max(self._slopes, default=1.0):
            return 0
        return min((t - s for (s, t), (a, b) in self._intervals if b > a), default=1) - 1

    @property
    def _intervals(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Steps and bytes of each two looks in a row."""
        return list(zip(pairwise(self.steps), pairwise(self.bytes), strict=True))

    @property
    def pause_at_end(self) -> int:
        """Steps without growth at the end."""
        return self._pauses[-1]

    @property
    def _rises(self) -> bool:
        few = len(self.bytes) < MIN_LOOKS or len(self._slopes) < MIN_LOOKS - 1
        return not few and all(b >= a for a, b in pairwise(self.bytes))

    @property
    def per_step(self) -> float:
        """Bytes a step: the median slope between looks that grew, as gc may have emptied it in between; over all steps
        where it grows every few of them.
        """
        if not self._slopes:
            return 0.0
        if self.grows and self.pauses:
            grown = (self.bytes[-1] - self.bytes[0]) / (self.steps[-1] - self.steps[0])
            return median(rate for rate, _ in self._periods) if self._periods else grown
        return float(median(self._slopes))

    @property
    def pauses(self) -> bool:
        """It did not grow at each look."""
        return any(self._pauses)

    @property
    def certain(self) -> bool:
        """It grew at each look, or at three of them where it pauses in between and not for longest at the end, or as
        often in step with a period: the last look comes one step after the one before it, which may be in its pause.
        """
        if not self.pauses or (len(self._slopes) >= MIN_LOOKS and self.grew_lately):
            return True
        return self.grows and min((times for _, times in self._periods), default=0) >= PERIODS

    @property
    def steady(self) -> bool:
        """No stretch between two looks that grew far less than the others: not one rise, at a compilation say, and
        then rest.
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
    def _pauses(self) -> list[int]:
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
        """Bytes a step, and how often it came, for each period of steps that the looks fit: as much at each time, at
        the looks that rose and at no other.
        """
        rates = []
        span = self.steps[-1] - self.steps[0]
        for period in range(2, span if span <= _SPAN else 0):
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
                    and min(risen) >= _ALIKE * max(risen) > 0
                ):
                    rates.append((sum(risen) / len(risen) / period, sum(came)))
        return rates

    @property
    def total(self) -> int:
        """Bytes between the smallest and the largest look."""
        return max(self.bytes, default=0) - min(self.bytes, default=0)

    def goes_on(self, min_bytes: int) -> bool:
        """Whether of its rises more than one was as large as that: a cache fills at once and then gains a little."""
        return not self._slopes or median_low(self._slopes) >= min_bytes

    def is_leak(self, min_bytes: int) -> bool:
        """Large enough for a verdict, not only a note."""
        return self.per_step >= min_bytes and self.total >= self.floor(min_bytes)

    def floor(self, min_bytes: int) -> int:
        """Bytes in all below which it is no leak: as much as `min_bytes` for each step between its looks."""
        return min_bytes * max(self.steps[-1] - self.steps[0], 1) if self.steps else min_bytes


def series(steps: Sequence[int], bytes_at: dict[int, int]) -> Series:
    """The bytes at each of the steps, 0 where none were seen."""
    return Series(tuple(steps), tuple(bytes_at.get(step, 0) for step in steps))
