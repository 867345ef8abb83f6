"""When is a step over, and after which steps is the process looked at?"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

FIRST_LOOKS = (1, 3, 5, 7)
"""Steps after warm-up at whose end a look is always taken."""
_SPACING = 1.25
"""Later looks are at least this far apart, as a factor, so that a long run keeps few of them."""


class StepClock:
    """A step goes from one call to the next of the first optimizer instance that steps; it is held weakly."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Any] | None = None

    def ends_with(self, optimizer: object) -> bool:
        """Does this optimizer's call end a step? One that is gone hands over to the next that steps."""
        current = None if self._optimizer is None else self._optimizer()
        if current is None:
            self._optimizer = weakref.ref(optimizer)
            return True
        return current is optimizer


@dataclass
class Schedule:
    """Decides on looks: the first ones whatever they cost, later ones as the budget allows."""

    warmup: int
    steps: int | None
    """Where the run is to be ended; the look after it is not this schedule's."""
    budget: float
    """Share of the run's time that looking may take, 0.02 for 2%."""
    spent: float = 0.0
    """Seconds spent looking so far."""
    longest: float = 0.0
    _last: int = 0

    def due(self, step: int, elapsed: float) -> bool:
        """Is a look due at the end of this step, `elapsed` seconds into the run?"""
        if self.steps is not None and step >= self.steps:
            return False
        if step - self.warmup in FIRST_LOOKS or (self.steps is not None and step == self.steps - 1):
            return step > self.warmup
        if step <= self.warmup + FIRST_LOOKS[-1] or step < math.ceil(self._last * _SPACING):
            return False
        return self.spent + self.longest <= self.budget * elapsed

    def taken(self, step: int, seconds: float) -> None:
        """Note what a look cost."""
        self._last, self.spent = step, self.spent + seconds
        self.longest = max(self.longest, seconds)
