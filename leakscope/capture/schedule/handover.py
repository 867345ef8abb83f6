"""What ended the steps so far, and from where on are they judged?"""

from __future__ import annotations

from leakscope.capture.schedule.looks import Schedule
from leakscope.capture.schedule.steps import Tick
from leakscope.capture.watched_steps import WatchedSteps
from leakscope.record.folder import RankFolder
from leakscope.record.kinds import ClockKind
from leakscope.record.rows.clock import StepsBy


class Handover:
    """Where another clock takes over, the numbers go on, and warm-up, looks and end are counted from there.

    What the first one ended was no step of the training: an evaluation ahead of it, or the microbatches of a step.
    """

    def __init__(self, folder: RankFolder, schedule: Schedule, watched_steps: WatchedSteps) -> None:
        self._folder, self._schedule, self._watched_steps = folder, schedule, watched_steps
        self._by: StepsBy | None = None

    def expect(self, function: str, missing: bool = False) -> None:
        """Only the returns of this function end steps, even if there are none; `missing` where there is none such."""
        self._by = StepsBy(ClockKind.FUNCTION, function, 0, missing)
        self._folder.append(self._by)

    def note(self, tick: Tick, steps: int) -> None:
        """Another step is over, after `steps` of them."""
        by = self._by
        if by is not None and (by.clock, by.name) == tick:
            return
        since = 0 if by is None else by.since if by.clock == tick.clock else steps
        self._by = StepsBy(tick.clock, tick.name, since)
        self._folder.append(self._by)
        if by is not None and since != by.since:
            self._schedule.begin_again(since)
            self._watched_steps.begin_again(since)

    def own(self, steps: int) -> int:
        """How many of the steps the clock that ticks now has ended."""
        return steps - (0 if self._by is None else self._by.since)
