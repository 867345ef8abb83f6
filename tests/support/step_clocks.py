"""Hears which steps end in this process, and by what."""

from __future__ import annotations

from leakscope.capture.schedule.events import StepEvents
from leakscope.capture.schedule.steps import StepClock
from leakscope.record.kinds import ClockKind


class Heard:
    """The steps that have ended, by what ended them."""

    def __init__(self) -> None:
        self.ticks: list[tuple[ClockKind, str]] = []
        self.errors: list[Exception] = []
        self.step_alone = True
        self.clock = StepClock(lambda: self.step_alone)
        self.events = StepEvents(self.clock, self.ticks.append, lambda: False, self.errors.append)

    def by(self, clock: ClockKind) -> int:
        return sum(tick[0] == clock for tick in self.ticks)
