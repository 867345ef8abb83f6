"""The steps after which workers are sampled, within the budget of the run."""

from __future__ import annotations

from dataclasses import dataclass

_AT_ONCE_S = 0.25
"""Seconds, chosen, that reading may take at once: a short run has a story of its workers for so much."""
_SHARE_AT_FIRST = 0.05
"""Share of the time so far, chosen, that the first readings may take."""
_FIRST = 12
"""Readings of the first sort, chosen."""
_ENDS = 3
"""Lives of workers, chosen, whose last reading counts as one of the first."""
_SPACING_FACTOR = 1.1
"""How many times further than the last one the next one is at least, by step number, after the first ones."""


@dataclass
class Readings:
    """Decides on the readings of all workers of one rank."""

    budget: float
    """Share of the run's time that leakscope may take."""
    spent: float = 0.0
    """Seconds that reading has taken."""
    _taken: int = 0
    _ends: int = 0
    _last: int = 0
    _cost: float = 0.0

    def due(self, step: int, elapsed: float) -> bool:
        """Is a reading due at the end of this step, `elapsed` seconds into the run?"""
        if self._taken >= _FIRST and step < self._last * _SPACING_FACTOR:
            return False
        return self.affords(elapsed)

    def affords(self, elapsed: float, last: bool = False) -> bool:
        """May the workers be read once more by now, for the `last` time in their life?"""
        after = self.spent + self._cost
        self._ends += last
        first = (
            self._taken < _FIRST or (last and self._ends <= _ENDS)
        ) and after <= _AT_ONCE_S + _SHARE_AT_FIRST * elapsed
        return first or after <= self.budget * (elapsed + self._cost)

    def taken(self, step: int, seconds: float) -> None:
        """Note what a reading cost."""
        self._taken += 1
        self._last, self._cost = step, seconds
        self.spent += seconds
