"""Where do the other ranks stand, and what does that ask of this one?"""

from __future__ import annotations

from collections.abc import Callable

from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.patches import Patches
from leakscope.capture.schedule.looks import Schedule
from leakscope.capture.schedule.rank_state import RankStateFile, all_there
from leakscope.capture.torch_private import c10d
from leakscope.options import Options
from leakscope.originals import Path
from leakscope.record.live.rank_states import Activity, RankState

_LAST_STEP_TIMEOUT_S = 2.0
"""Seconds to wait at the last step for a rank that may own an optimizer and has not stepped yet."""
_POLL_POINT_TIMEOUT_S = 0.5
"""Seconds in which a rank has to reach a poll point, before the watchdog's thread looks at it."""
_ANSWER_TIMEOUT_S = 5.0
"""Seconds that a rank whose allocation failed waits for its peers to be looked at, while none of them is."""
LOOK_TIMEOUT_S = 120.0
"""Seconds, chosen, after which no rank waits any longer for one that is looked at: it may have died of something."""
_WAITING_INTERVAL_S = 0.005
"""Seconds between two readings of the peers' states while this rank waits for them."""
_AHEAD = 2
"""Steps between asking all ranks for a look and the look: in lockstep, where none is a whole step ahead of another,
each has the question before it gets there.
"""


def call_ahead_of_comm(poll: Callable[..., None], patches: Patches) -> None:
    """Make each comm operation a poll point."""
    # the classes are wrapped, not torch.distributed.isend: P2POp refuses any other function ("Invalid op")
    for owner, name in ((c10d.ProcessGroup, "send"), (c10d.ProcessGroup, "recv"), (c10d.Work, "wait")):
        patches.call_before(owner, name, poll)


class Peers:
    """Reads the ranks' states for one of them; a rank without steps is looked at when its peers step.

    A rank's poll points are the end of a step, and its main thread ahead of a comm operation. One that reaches none, as
    one that waits for what will never be sent or is busy with RPC, is looked at on the watchdog's thread.
    """

    def __init__(
        self,
        file: RankStateFile,
        schedule: Schedule,
        options: Options,
        look: Callable[[int], None],
        answer: Callable[[int], None],
    ) -> None:
        """`look(step)` looks at this rank for its peers' step, `answer(rank)` for an allocation that failed there."""
        self._file, self._schedule, self._look, self._answer = file, schedule, look, answer
        self._rank, self._world = options.rank, options.world
        self._steps = options.steps
        self._by_hand = options.by_hand
        self._began = CLOCK.perf_counter()
        self._judged: tuple[tuple[RankState, ...], bool] = ((), False)
        """What the ranks' states were when it was last asked whether the run is over, and the answer."""
        self._looked_at = 0
        """The step of this rank's own after which it was last looked at."""
        self._seen = 0
        """The peers' latest step that needs no look any more."""
        self._waiting_since: float | None = None
        self._failing_since: float | None = None

    def join(self, rank: int, world: int, states: Path) -> None:
        """Be this rank among so many, whose states are in that file from now on."""
        self._file.join(states, rank, world)
        self._rank, self._world = rank, world
        self._judged = ((), False)

    def begin(self) -> None:
        """The clock of the budget starts."""
        self._began = CLOCK.perf_counter()

    def step_alone(self) -> bool:
        """May a backward or a module's call end a step of this rank, which has no optimizer that steps?

        Among several ranks only where none has one: else it follows those that do. The first backward or call of each
        only says so, and all of a run in lockstep begin to count with the second.
        """
        states = self._file.states()
        if len(states) == 1:
            return True
        self._file.update(alone=self._file.mine.alone + 1)
        others = [state for rank, state in enumerate(states) if rank != self._rank]
        return self._file.mine.alone > 1 and all(
            state.alone > 0 or state.activity >= Activity.ENDED for state in others
        )

    def all_over(self) -> bool:
        """Has a run with `steps` come to its end?"""
        if self._steps is None or self._by_hand:
            return False
        states = self._file.states()
        if states is not self._judged[0]:
            self._judged = states, all_there(states, self._steps)
        return self._judged[1]

    def somebody_stepped(self) -> bool:
        """Has any rank taken a step?"""
        return any(state.steps > 0 for state in self._file.states())

    def somebody_looks(self) -> bool:
        """Is any rank being looked at, this one included?"""
        return any(state.activity == Activity.LOOKING for state in self._file.states())

    def wait_at_last_step(self) -> None:
        """Hold this rank at its last step until its peers have reached theirs, briefly: they may need it to go on."""
        self._wait(self._arrived, _LAST_STEP_TIMEOUT_S)

    def _wait(self, over: Callable[[], bool], seconds: float) -> None:
        """Wait until it is over, for so many seconds, or for longer while a rank is looked at."""
        began = CLOCK.monotonic()
        while not over():
            waited = CLOCK.monotonic() - began
            if waited > LOOK_TIMEOUT_S or (waited > seconds and not self.somebody_looks()):
                break
            CLOCK.sleep(_WAITING_INTERVAL_S)

    def _arrived(self) -> bool:
        steps = self._steps or 0
        return all(state.steps >= steps or state.activity >= Activity.STOPPING for state in self._file.states())

    def failing(self) -> int:
        """The rank that ran out of memory and waits for this one to be looked at; -1 for none."""
        if self._file.mine.answered:
            return -1
        states = self._file.states()
        return next((rank for rank, state in enumerate(states) if state.failed and rank != self._rank), -1)

    def answer_if_one_failed(self) -> None:
        """Be looked at for a peer that waits for it; for poll points."""
        # the watchdog reads the states: here it would cost more than noting the operation does
        if self._failing_since is None:
            return
        failing = self.failing()
        if failing >= 0:
            # both at once: the failing rank waits for nobody who has answered and is not being looked at
            self._file.update(answered=True, activity=Activity.LOOKING)
            try:
                self._answer(failing)
            except BaseException:
                self._file.update(activity=Activity.RUNNING)
                raise

    def answer_on_watchdog_thread(self) -> None:
        """The same for a rank that reaches no poll point."""
        if self.failing() < 0:
            return
        if self._failing_since is None:
            self._failing_since = CLOCK.monotonic()
        elif CLOCK.monotonic() - self._failing_since > _POLL_POINT_TIMEOUT_S:
            self.answer_if_one_failed()

    def wait_for_answers(self) -> None:
        """Hold this rank, whose allocation failed, until its peers were looked at: the launcher ends them with it."""
        self._wait(self._answered, _ANSWER_TIMEOUT_S)

    def _answered(self) -> bool:
        others = [state for rank, state in enumerate(self._file.states()) if rank != self._rank]
        return all(
            (state.answered and state.activity != Activity.LOOKING) or state.activity >= Activity.ENDED
            for state in others
        )

    def look_is_due(self, step: int, own: int, elapsed: float, counted: int | None, wanted: bool = False) -> bool:
        """Is a look due at the end of this step, the `own`th of the clock that ticks now? `wanted` where somebody has
        asked for one, whatever it costs.

        All ranks wait for one that is looked at. So beyond the looks that are planned, what one of them finds due it
        asks all for, and they are looked at after the same step.
        """
        schedule, file = self._schedule, self._file
        schedule.counted = counted or 0
        self._looked_at = min(self._looked_at, own)  # another clock took over, and counts anew
        states = file.states() if self._world > 1 else ()
        others = [state for rank, state in enumerate(states) if rank != self._rank]
        schedule.peers_spent = max((state.spent for state in others), default=0.0)
        asked = [state.look_at for state in states if self._looked_at < state.look_at <= own + _AHEAD]
        if not others or schedule.is_planned(step):
            due = schedule.due(step, elapsed) or (wanted and not others)
        elif asked:
            due = min(asked) <= own
        else:
            due = False
            if wanted or schedule.due(step, elapsed):
                file.update(look_at=own + _AHEAD)
        if due:
            self._looked_at = own
        return due

    def look_if_they_stepped(self) -> None:
        """Be looked at, without steps of its own, for the peers' latest step; for poll points."""
        step = self._step_to_look_at()
        if step:
            self._look_at(step)

    def look_on_watchdog_thread(self) -> None:
        """The same for a rank that reaches no poll point."""
        step = self._step_to_look_at()
        if not step:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = CLOCK.monotonic()
        elif CLOCK.monotonic() - self._waiting_since > _POLL_POINT_TIMEOUT_S:
            self._look_at(step)

    def _look_at(self, step: int) -> None:
        self._seen, self._waiting_since = step, None
        self._look(step)

    def _step_to_look_at(self) -> int:
        """The peers' step that this rank, which has no steps of its own, has not been looked at for; 0 for none."""
        states = self._file.states()
        step = max(state.steps for state in states)
        if step <= self._seen:
            return 0
        elapsed = CLOCK.perf_counter() - self._began
        passed = range(self._seen + 1, step + 1)
        asked = any(state.look_at in passed for state in states)
        planned = (number for number in passed if self._schedule.is_planned(number))
        if step == self._steps or asked or any(self._schedule.due(number, elapsed) for number in planned):
            return step
        self._seen = step
        return 0
