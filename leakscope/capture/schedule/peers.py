"""Where do the other ranks stand, and what does that ask of this one?"""

from __future__ import annotations

import time
from collections.abc import Callable

from leakscope.capture.schedule import rank_state as places
from leakscope.capture.schedule.rank_state import Board
from leakscope.capture.schedule.steps import Schedule
from leakscope.options import Options

_PATIENCE = 2.0
"""Seconds to wait at the last step for a rank that may own an optimizer and has not stepped yet."""
_COMES_BY = 0.5
"""Seconds a rank has to come by itself, at the end of a step or at the wire, before it is looked at from aside."""
_ANSWER = 5.0
"""Seconds that a rank whose allocation failed waits for its peers to be looked at, while none of them is."""


class Peers:
    """Reads the board for one rank; a rank without steps is looked at when its peers step."""

    def __init__(
        self, board: Board, schedule: Schedule, options: Options, look: Callable[[int], None], answer: Callable[[int], None]
    ) -> None:  # fmt: skip
        """`look(step)` looks at this rank for a step of its peers, `answer(rank)` for an allocation that failed on a rank."""
        self._board, self._schedule, self._look, self._answer = board, schedule, look, answer
        self._rank = options.rank
        self._steps = options.steps
        self._by_hand = options.by_hand
        self._began = time.perf_counter()
        self._judged: tuple[tuple[places.Slot, ...], bool] = ((), False)
        """What stood on the board when it was last asked whether the run is over, and the answer."""
        self._seen = 0
        """The peers' latest step that needs no look any more."""
        self._waiting_since: float | None = None
        self._failing_since: float | None = None

    def begin(self) -> None:
        """The clock of the budget starts."""
        self._began = time.perf_counter()

    def all_over(self) -> bool:
        """Has a run with `steps` come to its end?"""
        if self._steps is None or self._by_hand:
            return False
        slots = self._board.slots()
        if slots is not self._judged[0]:
            self._judged = slots, places.all_there(slots, self._steps)
        return self._judged[1]

    def somebody_looks(self) -> bool:
        return any(slot.state == places.LOOKING for slot in self._board.slots())

    def wait_at_last_step(self) -> None:
        """Hold this rank at its last step until its peers have reached theirs, but never for long: they may need it to go on."""
        deadline = time.monotonic() + _PATIENCE
        while not self._arrived() and (time.monotonic() < deadline or self.somebody_looks()):
            time.sleep(0.005)

    def _arrived(self) -> bool:
        steps = self._steps or 0
        return all(slot.steps >= steps or slot.state >= places.STOPPING for slot in self._board.slots())

    def failing(self) -> int:
        """The rank that ran out of memory and waits for this one to be looked at; -1 for none."""
        if self._board.mine.answered:
            return -1
        return next(
            (number for number, slot in enumerate(self._board.slots()) if slot.failed and number != self._rank), -1
        )

    def answer_if_one_failed(self) -> None:
        """To be called where this rank comes by: at the end of a step and ahead of an operation on the wire."""
        if (
            self._failing_since is None
        ):  # the watchdog reads the board: here it would cost more than the operation's watch
            return
        failing = self.failing()
        if failing >= 0:
            self._board.say(answered=True)
            self._answer(failing)

    def answer_from_aside(self) -> None:
        """The same from the watchdog's thread, for a rank that does not come by, as one that waits for what will never be sent."""
        if self.failing() < 0:
            return
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        elif time.monotonic() - self._failing_since > _COMES_BY:
            self.answer_if_one_failed()

    def wait_for_answers(self) -> None:
        """Hold this rank, whose allocation failed, until its peers were looked at: once it ends, the launcher ends them."""
        deadline = time.monotonic() + _ANSWER
        while not self._answered() and (time.monotonic() < deadline or self.somebody_looks()):
            time.sleep(0.005)

    def _answered(self) -> bool:
        others = [slot for number, slot in enumerate(self._board.slots()) if number != self._rank]
        return all((slot.answered and slot.state != places.LOOKING) or slot.state == places.ENDED for slot in others)

    def look_if_they_stepped(self) -> None:
        """To be called where a rank without steps comes by: its main thread, ahead of an operation on the wire."""
        step = self._step_to_look_at()
        if step:
            self._look_at(step)

    def look_from_aside(self) -> None:
        """The same from the watchdog's thread, for a rank that does not come by itself, as one busy with RPC."""
        step = self._step_to_look_at()
        if not step:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._waiting_since > _COMES_BY:
            self._look_at(step)

    def _look_at(self, step: int) -> None:
        self._seen, self._waiting_since = step, None
        self._look(step)

    def _step_to_look_at(self) -> int:
        """The peers' step that this rank, which has no steps of its own, has not been looked at for; 0 for none."""
        step = max(slot.steps for slot in self._board.slots())
        if step <= self._seen:
            return 0
        elapsed = time.perf_counter() - self._began
        passed = range(self._seen + 1, step + 1)
        if step == self._steps or any(self._schedule.due(number, elapsed) for number in passed):
            return step
        self._seen = step
        return 0
