"""After which steps is the process looked at?"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_LOOKS = (1, 3, 5, 7)
"""Steps after warm-up at whose end a look is always taken."""
_SPACING_FACTOR = 1.25
"""How many times further than the last look the next one is at least, by step number: a long run keeps few of them."""
_MIN_RISE_BYTES = 1 << 20
"""Bytes by which memory has risen over all looks so far where it calls for one."""
_MIN_RISE_SHARE = 0.001
"""The same as a share of what was counted."""
_MAX_CALLED = 6
"""Looks that risen memory may call for, whatever they cost."""


@dataclass
class Schedule:
    """Decides on looks: first ones whatever they cost, later ones as the budget allows or risen memory calls for them.

    A leak once in an epoch must be seen to go on in a run of a minute as well. Such a look is taken one step after the
    memory has risen: at the step itself all that varies from step to step would be seen at its highest.
    """

    warmup: int
    steps: int | None
    """Where the run is to be ended; the look after it is not this schedule's."""
    budget: float
    """Share of the run's time that looking may take, 0.02 for 2%."""
    spent: float = 0.0
    """Seconds spent looking so far."""
    longest: float = 0.0
    """Seconds that the longest look so far took."""
    _since: int = 0
    """The step after which the clock that ticks now took over."""
    _last: int = 0
    _counted: int = 0
    _most: int = 0
    """What was counted at the look that found most."""
    _called: int = 0
    _risen: bool = False

    def begin_again(self, step: int) -> None:
        """Another clock took over after this step: warm-up, the first looks and the end are counted from there."""
        self.warmup += step - self._since
        self.steps = None if self.steps is None else self.steps + step - self._since
        self._since = step

    def due(self, step: int, elapsed: float, counted: int | None = None) -> bool:
        """Is a look due at the end of this step, `elapsed` seconds into the run, with so many bytes counted?"""
        self._counted = counted or 0
        if self.steps is not None and step >= self.steps:
            return False
        if step - self.warmup in FIRST_LOOKS or (self.steps is not None and step == self.steps - 1):
            return step > self.warmup
        if step <= self.warmup + FIRST_LOOKS[-1] or step < math.ceil(self._last * _SPACING_FACTOR):
            return False
        if self.spent + self.longest <= self.budget * elapsed:
            return True
        called, self._risen = (
            self._risen,
            self._called < _MAX_CALLED
            and self._counted - self._most >= max(_MIN_RISE_BYTES, _MIN_RISE_SHARE * self._most),
        )
        self._called += called
        return called

    def taken(self, step: int, seconds: float) -> None:
        """Note what a look cost."""
        self._last, self.spent, self._risen = step, self.spent + seconds, False
        self._most = max(self._most, self._counted)
        self.longest = max(self.longest, seconds)
