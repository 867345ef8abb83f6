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
from leakscope.run.live import about_this_process, times_asked
from leakscope.run.rows import Answer, Occasion
from leakscope.run.writer import ASKED, RankFolder
from leakscope.shield import contextmanager

FIRST_LOOKS = (1, 3, 5, 7)
"""Steps after warm-up at whose end the first looks are taken, or later where they cost too much."""
_NEEDED = 3
"""Looks without which no growth is judged (findings/growth.py, MIN_LOOKS)."""
_AT_ONCE_S = 4.0
"""Seconds, chosen, that looking may take at once for a verdict: that a short run has one is worth so much."""
_SHARE_AT_FIRST = 0.2
"""Share of the time so far, chosen, that the same looks may take on top: a job that dies after 20 s has a verdict."""
_CHEAP_S = 3.0
"""Seconds of the processor in which looks that no verdict needs still come at once. Four of 360,000 objects took 1.6 to
2.3 s on two cores that ran other work: at 2 the fourth came or not by what else the machine did."""
_SPACING_FACTOR = 1.25
"""How many times further than the last look the next one is at least, by step number: a long run keeps few of them."""
_MIN_RISE_BYTES = 1 << 20
"""Bytes by which memory has risen over all looks so far where it calls for one."""
_MIN_RISE_SHARE = 0.001
"""The same as a share of what was counted."""
_MAX_CALLED = 6
"""Looks that risen memory may call for, beyond the budget."""


@dataclass
class Schedule:
    """Decides on looks: first ones as soon as a verdict is worth them, later ones as the budget allows or risen memory
    calls for them. With `steps` the first ones come whatever they cost: the end is near and was asked for.

    A leak once in an epoch must be seen to go on in a run of a minute as well. Such a look is taken one step after the
    memory has risen: at the step itself all that varies from step to step would be seen at its highest.
    """

    warmup: int
    steps: int | None
    """Where the run is to be ended; the look after it is not this schedule's."""
    budget: float
    """Share of the run's time that leakscope may take, 0.02 for 2%."""
    spent: float = 0.0
    """Seconds that looks, and all else at the ends of steps, took so far."""
    peers_spent: float = 0.0
    """The most that any peer has spent, with one more look: ranks in lockstep wait for the slowest."""
    counted: int = 0
    """Bytes counted at the end of the last step."""
    worked: float = 0.0
    """The same as `spent` of looks alone, in seconds of the processor: which looks come at once must not hang on what
    else the machine does.
    """
    _cost: float = 0.0
    """Seconds that the last look took: what the next one will."""
    _work: float = 0.0
    """The same in seconds of the processor."""
    _since: int = 0
    """The step after which the clock that ticks now took over."""
    _taken: int = 0
    """Looks since then from which growth is judged."""
    _last: int = 0
    _most: int = 0
    """What was counted at the look that found most."""
    _called: int = 0
    _risen: bool = False

    def begin_again(self, step: int) -> None:
        """Another clock took over after this step: warm-up, the first looks and the end are counted from there."""
        self.warmup += step - self._since
        self.steps = None if self.steps is None else self.steps + step - self._since
        self._since, self._taken = step, 0

    def due(self, step: int, elapsed: float) -> bool:
        """Is a look due at the end of this step, `elapsed` seconds into the run?"""
        if step <= self.warmup or (self.steps is not None and step >= self.steps):
            return False
        if self.steps is not None and self.is_planned(step):
            return True
        if self.steps is None and self._is_first(step) and self._affords_first(elapsed):
            return True
        if step <= self.warmup + FIRST_LOOKS[-1] or step < math.ceil(self._last * _SPACING_FACTOR):
            return False
        return self._is_within_budget(elapsed) or self._is_called_for(elapsed)

    def _is_first(self, step: int) -> bool:
        """Have fewer of the first looks been taken than there should be by this step?"""
        return self._taken < len(FIRST_LOOKS) and step >= self.warmup + FIRST_LOOKS[self._taken]

    def _affords_first(self, elapsed: float) -> bool:
        at_once = self._is_worth_a_verdict(elapsed) if self._taken < _NEEDED else self.worked + self._work <= _CHEAP_S
        return at_once or self._is_within_budget(elapsed)

    def _is_worth_a_verdict(self, elapsed: float) -> bool:
        return self.worked + self._work <= _AT_ONCE_S + _SHARE_AT_FIRST * elapsed

    def _is_within_budget(self, elapsed: float) -> bool:
        """The time of a look is part of the run's: with a budget of 1, all of it, none is too dear."""
        return max(self.with_one_more, self.peers_spent) <= self.budget * (elapsed + self._cost)

    def _is_called_for(self, elapsed: float) -> bool:
        """Had memory risen at the step before?"""
        called, self._risen = (
            self._risen,
            self._called < _MAX_CALLED
            and self.counted - self._most >= max(_MIN_RISE_BYTES, _MIN_RISE_SHARE * self._most)
            and self._is_worth_a_verdict(elapsed),
        )
        self._called += called
        return called

    @property
    def with_one_more(self) -> float:
        """What looking will have taken after the next look."""
        return self.spent + self._cost

    def is_planned(self, step: int) -> bool:
        """Is this a step at which every rank is looked at, if it can afford it?"""
        return step - self.warmup in FIRST_LOOKS or (self.steps is not None and step == self.steps - 1)

    def begun(self, step: int, judged: bool = True) -> None:
        """Note that a look is attempted for a step, and whether growth is judged from it."""
        self._last, self._risen = step, False
        self._taken += judged and step > self.warmup
        self._most = max(self._most, self.counted)

    def taken(self, seconds: float, work: float) -> None:
        """Note what the look that was begun last cost, in seconds and in those of the processor."""
        self._cost, self._work = seconds, work
        self.also(seconds, work)

    def also(self, seconds: float, work: float = 0.0) -> None:
        """Note what else cost time."""
        self.spent += seconds
        self.worked += work


_PATIENCE_S = 3.0
"""Seconds, chosen, that a step may take beyond its time before it is looked at in its middle for who has asked."""
_STEPS = 4
"""Steps, chosen, that may pass until all ranks look: they are asked two ahead."""


class Asked:
    """The requests of a run and those that this rank has answered."""

    def __init__(
        self,
        options: Options,
        rank: RankFolder,
        collections: CollectionWatch,
        write_about: Callable[[], None],
        look: Callable[[int, Occasion], None],
    ) -> None:
        """`look` looks once no other look is under way; `write_about` writes what who reads a run needs besides."""
        self._file = options.folder / ASKED
        self._source = options.source
        self._rank, self._collections = rank, collections
        self._write_about, self._look = write_about, look
        self._asked = self._answered = 0
        self._since = 0.0
        self._step_seconds = 0.0
        self._stacks: tuple[str, ...] = ()

    def begin(self) -> None:
        """Write which process answers."""
        self._rank.write(PROCESS, about_this_process())

    def step_ended(self, seconds: float) -> bool:
        """Another step is over, so long as this: whether somebody waits for a look."""
        self._step_seconds = seconds
        return self._is_due()

    def _is_due(self) -> bool:
        return self._asked > self._answered

    def tick(self, step: int, excused: bool) -> None:
        """Read what is asked, and look where no step ends; on the watchdog's thread, while no other look goes on.

        `excused` while a peer is looked at: this rank may wait for it.
        """
        asked = times_asked(self._file)
        if excused or (asked > self._asked and not self._is_due()):
            self._since = CLOCK.monotonic()
        self._asked = asked
        if self._is_due() and CLOCK.monotonic() - self._since > _PATIENCE_S + _STEPS * self._step_seconds:
            stacks = stacks_of_threads()
            self._stacks = stacks if self._source else without_source(stacks)
            with self._collections.not_listening():
                self._look(step, Occasion.ASKED)

    @contextmanager
    def answering(self, step: int, occasion: Occasion) -> Iterator[None]:
        """A look, whatever it is taken for: it answers all that were asked before it."""
        asked, began = times_asked(self._file), CLOCK.perf_counter()
        yield
        stacks, self._stacks = self._stacks, ()
        if asked > self._answered:
            self._answered = asked
            self._write_about()
            self._rank.append(Answer(asked, step, occasion, CLOCK.wall_time(), CLOCK.perf_counter() - began, stacks))
