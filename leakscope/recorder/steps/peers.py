"""The state of the other ranks, shared through a small file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from leakscope.options import Options
from leakscope.originals import Path, _thread, os
from leakscope.process.guard import CLOCK
from leakscope.process.patches import Patches
from leakscope.process.torch_compat import c10d
from leakscope.recorder.steps.policy import Schedule
from leakscope.run.descriptors import Descriptor
from leakscope.run.live import MARK, RECORD, Activity, RankState, place_of, unpacked
from leakscope.shield import Block, PureBlock


class RankStateFile:
    """Reads and writes the records of the ranks' states; needs no store, port or process group, and outlives a killed
    rank.
    """

    def __init__(self, path: Path, rank: int, world: int) -> None:
        self._path, self._rank, self._world = path, rank, world
        self._mine = RankState(0, Activity.RUNNING, 0.0)
        self._read: tuple[bytes | None, tuple[RankState, ...]] = (None, ())
        self._is_open = True
        self._updating = _thread.RLock()
        """The watchdog's thread changes the record too, and so may a signal handler of the script within a change, on
        the same thread.
        """
        self._file = self._opened()
        self._write()

    def join(self, path: Path, rank: int, world: int) -> None:
        """Switch to another file as this rank of so many; its record is kept."""
        if self._file is not None:
            self._file.close()
        self._path, self._rank, self._world = path, rank, world
        self._read = (None, ())
        self._file = self._opened()
        self._write()

    @property
    def mine(self) -> RankState:
        """Record of this rank as last written."""
        return self._mine

    def update(
        self, steps: int | None = None, activity: Activity | None = None, ended: float | None = None,
        failed: bool = False, answered: bool = False, alone: int = 0, snapshot_at: int = 0, spent: float = 0.0,
    ) -> None:  # fmt: skip
        """Change this rank's record."""
        with self._updating:
            while True:
                mine = self._mine
                at_least = mine.activity if mine.activity >= Activity.STOPPING else Activity.RUNNING
                changed = RankState(
                    mine.steps if steps is None else steps,
                    mine.activity if activity is None else max(activity, at_least),
                    mine.ended if ended is None else ended,
                    mine.failed | failed,
                    mine.answered | answered,
                    max(mine.alone, alone),
                    snapshot_at or mine.snapshot_at,
                    max(mine.spent, spent),
                )
                if self._mine is mine:  # no call in between: nothing can interrupt this test and the assignment
                    self._mine = changed
                    break
            self._write()

    def taking_snapshot(self) -> PureBlock[None]:
        """Mark this rank as taking a snapshot during the block, and clear the mark in any case: peers
        may wait for it.
        """
        return Block(partial(self.update, activity=Activity.SNAPSHOT), partial(self.update, activity=Activity.RUNNING))

    def _write(self) -> None:
        if not self._is_open:
            return
        if not self._is_ours():
            self._file = self._opened()
        if self._file is not None:
            written = None
            while written is not self._mine:  # a signal handler may change it before it is written
                written = self._mine
                with suppress(OSError):  # the disk is full: the peers know no more than before
                    os.pwrite(self._file.number, RECORD.pack(*vars(written).values()), place_of(self._rank))

    def states(self) -> tuple[RankState, ...]:
        """One record per rank; this rank's own for all after the file is closed or lost.

        The same tuple as long as nothing changes: it is read before every comm operation.
        """
        if not self._is_open:
            return (self._mine,) * self._world
        data = self._bytes()
        before, states = self._read
        if data != before:
            if not data.startswith(MARK):  # the script has closed it, and its number is that of another file
                self._file = self._opened()
                data = self._bytes()
                if not data.startswith(MARK):
                    return (self._mine,) * self._world
            states = unpacked(data, self._world)
            self._read = data, states
        return states

    def _is_ours(self) -> bool:
        try:  # the mark, since asking the system for the file's identity takes twice as long
            return self._file is not None and os.pread(self._file.number, len(MARK), 0) == MARK
        except OSError:
            return False

    def _bytes(self) -> bytes:
        try:
            return b"" if self._file is None else os.pread(self._file.number, place_of(self._world), 0)
        except OSError:
            return b""

    def _opened(self) -> Descriptor | None:
        try:
            file = Descriptor(self._path, os.O_RDWR | os.O_CREAT)
            os.pwrite(file.number, MARK, 0)
        except OSError:
            return None
        return file

    def close(self) -> None:
        """Close the file; later calls are no-ops, since the watchdog's thread may still call."""
        self._is_open = False
        if self._file is not None:
            self._file.close()


def all_finished(states: tuple[RankState, ...], steps: int) -> bool:
    """Whether every rank with an optimizer has taken its `steps` steps, or one was told to stop."""
    owners = [state for state in states if state.steps > 0 and state.activity != Activity.LOST]
    return any(state.activity == Activity.STOPPING for state in states) or (
        bool(owners) and all(state.steps >= steps or state.activity == Activity.ENDED for state in owners)
    )


_LAST_STEP_TIMEOUT_S = 2.0
"""Seconds to wait at the last step for a rank that may have an optimizer and has not stepped yet."""
_POLL_POINT_TIMEOUT_S = 0.5
"""Seconds for a rank to reach a poll point before the watchdog's thread takes its snapshot."""
_ANSWER_TIMEOUT_S = 5.0
"""Seconds that a rank whose allocation failed waits for its peers' snapshots while none is in progress."""
SNAPSHOT_TIMEOUT_S = 120.0
"""Seconds after which no rank waits for one that takes a snapshot: it may have died. Heuristic."""
_WAITING_INTERVAL_S = 0.005
"""Seconds between two readings of the peers' states while this rank waits."""
_AHEAD = 2
"""Steps between the request to all ranks and the snapshot: in lockstep each has the request before it gets there."""


def call_ahead_of_comm(poll: Callable[..., None], patches: Patches) -> None:
    """Make each comm operation a poll point."""
    # the classes are wrapped, not torch.distributed.isend: P2POp refuses any other function ("Invalid op")
    for owner, name in ((c10d.ProcessGroup, "send"), (c10d.ProcessGroup, "recv"), (c10d.Work, "wait")):
        patches.call_before(owner, name, poll)


class Peers:
    """Reads the ranks' states for one of them; a rank without steps takes snapshots when its peers step.

    Poll points of a rank are the end of a step, and its main thread before a comm operation. A rank that reaches none,
    because it waits forever or is busy with RPC, takes its snapshot on the watchdog's thread.
    """

    def __init__(
        self,
        file: RankStateFile,
        schedule: Schedule,
        options: Options,
        snapshot: Callable[[int], None],
        answer: Callable[[int], None],
    ) -> None:
        """`snapshot(step)` takes a snapshot of this rank for its peers' step, `answer(rank)` for an allocation that
        failed there.
        """
        self._file, self._schedule, self._snapshot, self._answer = file, schedule, snapshot, answer
        self._rank, self._world = options.rank, options.world
        self._steps = options.steps
        self._by_hand = options.by_hand
        self._began = CLOCK.perf_counter()
        self._judged: tuple[tuple[RankState, ...], bool] = ((), False)
        """The ranks' states when the end of the run was last evaluated, and the result."""
        self._last_snapshot = 0
        """This rank's step after which its last snapshot was taken."""
        self._seen = 0
        """The peers' latest step that needs no snapshot any more."""
        self._waiting_since: float | None = None
        self._failing_since: float | None = None

    def join(self, rank: int, world: int, states: Path) -> None:
        """Switch to that file, as this rank of so many."""
        self._file.join(states, rank, world)
        self._rank, self._world = rank, world
        self._judged = ((), False)

    def begin(self) -> None:
        """Start the clock of the budget."""
        self._began = CLOCK.perf_counter()

    def step_alone(self) -> bool:
        """Whether a backward or module call may end a step of this rank, which has no stepping optimizer.

        With several ranks only if none has one: otherwise it follows those that do. The first backward or call of each
        only announces it, so that all ranks in lockstep start counting with the second.
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
        """Whether a run with `steps` is over."""
        if self._steps is None or self._by_hand:
            return False
        states = self._file.states()
        if states is not self._judged[0]:
            self._judged = states, all_finished(states, self._steps)
        return self._judged[1]

    def any_stepped(self) -> bool:
        """Whether any rank has taken a step."""
        return any(state.steps > 0 for state in self._file.states())

    def any_taking_snapshot(self) -> bool:
        """Whether any rank is taking a snapshot, including this one."""
        return any(state.activity == Activity.SNAPSHOT for state in self._file.states())

    def wait_at_last_step(self) -> None:
        """Hold this rank at its last step briefly until its peers have reached theirs: they may need it to continue."""
        self._wait(self._arrived, _LAST_STEP_TIMEOUT_S)

    def _wait(self, over: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition holds, for this many seconds, or longer while a rank takes a snapshot."""
        began = CLOCK.monotonic()
        while not over():
            waited = CLOCK.monotonic() - began
            if waited > SNAPSHOT_TIMEOUT_S or (waited > seconds and not self.any_taking_snapshot()):
                break
            CLOCK.sleep(_WAITING_INTERVAL_S)

    def _arrived(self) -> bool:
        steps = self._steps or 0
        return all(state.steps >= steps or state.activity >= Activity.STOPPING for state in self._file.states())

    def failing(self) -> int:
        """The rank that ran out of memory and waits for this one's snapshot; -1 for none."""
        if self._file.mine.answered:
            return -1
        states = self._file.states()
        return next((rank for rank, state in enumerate(states) if state.failed and rank != self._rank), -1)

    def answer_if_one_failed(self) -> None:
        """Take a snapshot for a peer that waits for it; for poll points."""
        # the watchdog reads the states: here it would cost more than recording the operation
        if self._failing_since is None:
            return
        failing = self.failing()
        if failing >= 0:
            # both at once: the failing rank waits for no rank that has answered and takes no snapshot
            self._file.update(answered=True, activity=Activity.SNAPSHOT)
            try:
                self._answer(failing)
            except BaseException:
                self._file.update(activity=Activity.RUNNING)
                raise

    def answer_on_watchdog_thread(self) -> None:
        """Answer a failed allocation of a peer, for a rank that reaches no poll point."""
        if self.failing() < 0:
            return
        if self._failing_since is None:
            self._failing_since = CLOCK.monotonic()
        elif CLOCK.monotonic() - self._failing_since > _POLL_POINT_TIMEOUT_S:
            self.answer_if_one_failed()

    def wait_for_answers(self) -> None:
        """Hold this rank, whose allocation failed, until its peers have taken their snapshots: the launcher ends them
        with it.
        """
        self._wait(self._answered, _ANSWER_TIMEOUT_S)

    def _answered(self) -> bool:
        others = [state for rank, state in enumerate(self._file.states()) if rank != self._rank]
        return all(
            (state.answered and state.activity != Activity.SNAPSHOT) or state.activity >= Activity.ENDED
            for state in others
        )

    def snapshot_is_due(
        self, step: int, own: int, elapsed: float, counted: int | None, requested: bool = False
    ) -> bool:
        """Whether a snapshot is due at the end of this step, the `own`th of the current step source; `requested` if the
        user asked for one, whatever it costs.

        All ranks wait for one that takes a snapshot. So beyond the planned ones, what one rank finds due is requested
        of all, after the same step.
        """
        schedule, file = self._schedule, self._file
        schedule.counted = counted or 0
        self._last_snapshot = min(self._last_snapshot, own)  # another step source took over, and restarts the count
        states = file.states() if self._world > 1 else ()
        others = [state for rank, state in enumerate(states) if rank != self._rank]
        schedule.peers_spent = max((state.spent for state in others), default=0.0)
        due_at = [state.snapshot_at for state in states if self._last_snapshot < state.snapshot_at <= own + _AHEAD]
        if not others or schedule.is_planned(step):
            due = schedule.due(step, elapsed) or (requested and not others)
        elif due_at:
            due = min(due_at) <= own
        else:
            due = False
            if requested or schedule.due(step, elapsed):
                file.update(snapshot_at=own + _AHEAD)
        if due:
            self._last_snapshot = own
        return due

    def snapshot_if_peers_stepped(self) -> None:
        """Take a snapshot for the peers' latest step, on a rank without steps; for poll points."""
        step = self._step_to_inspect()
        if step:
            self._snapshot_at(step)

    def snapshot_on_watchdog_thread(self) -> None:
        """Take a snapshot for the peers' latest step, on a rank that reaches no poll point."""
        step = self._step_to_inspect()
        if not step:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = CLOCK.monotonic()
        elif CLOCK.monotonic() - self._waiting_since > _POLL_POINT_TIMEOUT_S:
            self._snapshot_at(step)

    def _snapshot_at(self, step: int) -> None:
        self._seen, self._waiting_since = step, None
        self._snapshot(step)

    def _step_to_inspect(self) -> int:
        """The peers' step for which this rank, which has no steps, still needs a snapshot; 0 for none."""
        states = self._file.states()
        step = max(state.steps for state in states)
        if step <= self._seen:
            return 0
        elapsed = CLOCK.perf_counter() - self._began
        passed = range(self._seen + 1, step + 1)
        due_at = any(state.snapshot_at in passed for state in states)
        planned = (number for number in passed if self._schedule.is_planned(number))
        if step == self._steps or due_at or any(self._schedule.due(number, elapsed) for number in planned):
            return step
        self._seen = step
        return 0
