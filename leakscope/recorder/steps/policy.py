"""When a heap snapshot is taken: by schedule, budget and request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from leakscope.options import Options
from leakscope.process.gc_control import CollectionWatch
from leakscope.process.guard import CLOCK
from leakscope.process.user_code import without_source
from leakscope.process.watchdog import stacks_of_threads
from leakscope.run.live import NAME as PROCESS
from leakscope.run.live import about_this_process, request_count
from leakscope.run.rows import Answer, Occasion
from leakscope.run.writer import REQUEST_FILE, RankFolder
from leakscope.shield import contextmanager

FIRST_SNAPSHOTS = (1, 3, 5, 7)
"""Steps after warm-up at whose end the first snapshots are taken, or later if they cost too much."""
_AT_ONCE_S = 4.0
"""CPU seconds that the first snapshots may take regardless of the budget, so that a short run has a verdict. Four of
360,000 objects took 1.6 to 2.3 s on two busy cores; where they reached the limit, the fourth depended on the machine.
"""
_SHARE_AT_FIRST = 0.2
"""Additional share of the elapsed time for those snapshots: a job that dies after 20 s has a verdict. Heuristic."""
_SPACING_FACTOR = 1.25
"""Minimum factor between the step numbers of consecutive snapshots: a long run keeps few of them."""
_MIN_RISE_BYTES = 1 << 20
"""Minimum rise in bytes over all snapshots so far that triggers one."""
_MIN_RISE_SHARE = 0.001
"""Minimum rise that triggers a snapshot, as a share of the counted bytes."""
_MAX_CALLED = 6
"""Maximum snapshots triggered by risen memory, beyond the budget."""


@dataclass
class Schedule:
    """Schedules snapshots: the first ones as soon as a verdict is worth them, later ones within the budget or when
    memory has risen. With `steps` the first ones are taken at any cost.

    A leak once per epoch must be visible in a run of a minute as well. A snapshot triggered by risen memory is taken
    one step later: at the step itself everything that varies between steps would be at its highest.
    """

    warmup: int
    steps: int | None
    """The step at which the run ends; the snapshot after it is not scheduled here."""
    budget: float
    """Share of the run's time that leakscope may take, 0.02 for 2%."""
    spent: float = 0.0
    """Seconds that snapshots and all other work at step ends have taken."""
    peers_spent: float = 0.0
    """The maximum that any peer has spent, including one more snapshot: ranks in lockstep wait for the slowest."""
    counted: int = 0
    """Counted bytes at the end of the last step."""
    worked: float = 0.0
    """CPU seconds of snapshots alone: which ones are taken at once must not depend on the machine's load."""
    _cost: float = 0.0
    """Seconds of the last snapshot, the forecast of the next."""
    _work: float = 0.0
    """CPU seconds of the last snapshot, the forecast of the next."""
    _since: int = 0
    """The step after which the current step source took over."""
    _taken: int = 0
    """Snapshots since then from which growth is judged."""
    _last: int = 0
    _highest: int = 0
    """Counted bytes at the snapshot with the highest count."""
    _called: int = 0
    _risen: bool = False

    def restart(self, step: int) -> None:
        """Restart after this step, at which another step source took over: warm-up, first snapshots and end are counted
        from there.
        """
        self.warmup += step - self._since
        self.steps = None if self.steps is None else self.steps + step - self._since
        self._since, self._taken = step, 0

    def due(self, step: int, elapsed: float) -> bool:
        """Whether a snapshot is due at the end of this step, `elapsed` seconds into the run."""
        if step <= self.warmup or (self.steps is not None and step >= self.steps):
            return False
        if self.steps is not None and self.is_planned(step):
            return True
        if self.steps is None and self._is_first(step) and self._affords_first(elapsed):
            return True
        if step <= self.warmup + FIRST_SNAPSHOTS[-1] or step < math.ceil(self._last * _SPACING_FACTOR):
            return False
        return self._is_within_budget(elapsed) or self._is_called_for(elapsed)

    def _is_first(self, step: int) -> bool:
        """Whether fewer of the first snapshots have been taken than planned by this step."""
        return self._taken < len(FIRST_SNAPSHOTS) and step >= self.warmup + FIRST_SNAPSHOTS[self._taken]

    def _affords_first(self, elapsed: float) -> bool:
        return self._affords_verdict(elapsed) or self._is_within_budget(elapsed)

    def _affords_verdict(self, elapsed: float) -> bool:
        return self.worked + self._work <= _AT_ONCE_S + _SHARE_AT_FIRST * elapsed

    def _is_within_budget(self, elapsed: float) -> bool:
        """Whether another snapshot is within the budget; a budget of 1 allows any."""
        return max(self.with_one_more, self.peers_spent) <= self.budget * (elapsed + self._cost)

    def _is_called_for(self, elapsed: float) -> bool:
        """Whether memory had risen at the previous step."""
        called, self._risen = (
            self._risen,
            self._called < _MAX_CALLED
            and self.counted - self._highest >= max(_MIN_RISE_BYTES, _MIN_RISE_SHARE * self._highest)
            and self._affords_verdict(elapsed),
        )
        self._called += called
        return called

    @property
    def with_one_more(self) -> float:
        """Seconds spent including the next snapshot."""
        return self.spent + self._cost

    def is_planned(self, step: int) -> bool:
        """Whether every rank takes a snapshot at this step if it is within its budget."""
        return step - self.warmup in FIRST_SNAPSHOTS or (self.steps is not None and step == self.steps - 1)

    def attempted(self, step: int, judged: bool = True) -> None:
        """Record the attempt of a snapshot, and whether growth is judged from it."""
        self._last, self._risen = step, False
        self._taken += judged and step > self.warmup
        self._highest = max(self._highest, self.counted)

    def taken(self, seconds: float, work: float) -> None:
        """Record the cost of the last snapshot, in seconds and CPU seconds."""
        self._cost, self._work = seconds, work
        self.also(seconds, work)

    def also(self, seconds: float, work: float = 0.0) -> None:
        """Record other costs."""
        self.spent += seconds
        self.worked += work


_PATIENCE_S = 3.0
"""Seconds that a step may exceed its usual time before a requested snapshot is taken in its middle. Heuristic."""
_STEPS = 4
"""Steps until all ranks take a requested snapshot: they are notified two ahead. Heuristic."""


class SnapshotRequests:
    """Requests for snapshots of a run, and those that this rank has answered."""

    def __init__(
        self,
        options: Options,
        rank: RankFolder,
        collections: CollectionWatch,
        write_about: Callable[[], None],
        snapshot: Callable[[int, Occasion], None],
    ) -> None:
        """`snapshot` takes a snapshot once no other is in progress; `write_about` writes what else a reader of the run
        needs.
        """
        self._file = options.folder / REQUEST_FILE
        self._source = options.source
        self._rank, self._collections = rank, collections
        self._write_about, self._snapshot = write_about, snapshot
        self._requested = self._answered = 0
        self._since = 0.0
        self._step_seconds = 0.0
        self._stacks: tuple[str, ...] = ()

    def begin(self) -> None:
        """Publish which process answers."""
        self._rank.write(PROCESS, about_this_process())

    def step_ended(self, seconds: float) -> bool:
        """Called after a step of this duration; returns whether a snapshot is requested."""
        self._step_seconds = seconds
        return self._is_due()

    def _is_due(self) -> bool:
        return self._requested > self._answered

    def tick(self, step: int, excused: bool) -> None:
        """Read requests, and take a snapshot if no step ends; on the watchdog's thread, while none is in progress.

        `excused` while a peer takes one: this rank may wait for it.
        """
        requested = request_count(self._file)
        if excused or (requested > self._requested and not self._is_due()):
            self._since = CLOCK.monotonic()
        self._requested = requested
        if self._is_due() and CLOCK.monotonic() - self._since > _PATIENCE_S + _STEPS * self._step_seconds:
            stacks = stacks_of_threads()
            self._stacks = stacks if self._source else without_source(stacks)
            with self._collections.suspended():
                self._snapshot(step, Occasion.REQUESTED)

    @contextmanager
    def answering(self, step: int, occasion: Occasion) -> Iterator[None]:
        """Wrap a snapshot, taken for any reason: it answers all earlier requests."""
        requested, began = request_count(self._file), CLOCK.perf_counter()
        yield
        stacks, self._stacks = self._stacks, ()
        if requested > self._answered:
            self._answered = requested
            self._write_about()
            self._rank.append(
                Answer(requested, step, occasion, CLOCK.wall_time(), CLOCK.perf_counter() - began, stacks)
            )
