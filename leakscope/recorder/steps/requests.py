"""Requests for a heap snapshot, through a file in the folder of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from leakscope.options import Options
from leakscope.process.gc_control import CollectionWatch
from leakscope.process.guard import CLOCK
from leakscope.process.source.user_code import without_source
from leakscope.process.watchdog import stacks_of_threads
from leakscope.run.kinds import Occasion
from leakscope.run.live import NAME as PROCESS
from leakscope.run.live import about_this_process, times_asked
from leakscope.run.rows import Answer
from leakscope.run.writer import ASKED, RankFolder
from leakscope.shield import contextmanager

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
