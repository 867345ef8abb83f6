"""Is it growing? A series of bytes over looks, judged as a person would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST_LOOKS = 3
"""Fewer looks after warm-up say nothing about growth."""
LEAST_TOTAL_FACTOR = 16
"""A leak has grown by this many times `min_bytes` in all (64 KiB a step, 1 MiB in all)."""
STEADY_SHARE = 0.25
"""The slowest stretch of a steady growth is at least this share of the fastest."""


@dataclass(frozen=True)
class Series:
    """Bytes of one group at each judged look of one rank; 0 where it was not there."""

    steps: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def grows(self) -> bool:
        """More bytes at each of at least three looks."""
        return len(self.bytes) >= LEAST_LOOKS and all(a < b for a, b in zip(self.bytes, self.bytes[1:], strict=False))

    @property
    def per_step(self) -> float:
        """Bytes a step: the median slope between looks that grew; gc may have emptied it in between."""
        return float(median(self._slopes)) if self._slopes else 0.0

    @property
    def steady(self) -> bool:
        """No stretch between two looks that grew far less than the others: not one rise, at a compilation say, and then rest."""
        return bool(self._slopes) and min(self._slopes) >= STEADY_SHARE * max(self._slopes)

    @property
    def _slopes(self) -> list[float]:
        return [
            (b - a) / (t - s)
            for s, t, a, b in zip(self.steps, self.steps[1:], self.bytes, self.bytes[1:], strict=False)
            if b > a and t > s
        ]

    @property
    def total(self) -> int:
        return max(self.bytes, default=0) - min(self.bytes, default=0)

    def is_leak(self, min_bytes: int) -> bool:
        """Large enough for a verdict, not only a note."""
        return self.per_step >= min_bytes and self.total >= min_bytes * LEAST_TOTAL_FACTOR


def series(steps: Sequence[int], bytes_at: dict[int, int]) -> Series:
    return Series(tuple(steps), tuple(bytes_at.get(step, 0) for step in steps))
