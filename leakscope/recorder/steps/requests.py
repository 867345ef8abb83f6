"""Requests for a heap snapshot, through a file or SIGUSR1."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from contextlib import suppress

from leakscope.options import Options
from leakscope.originals import Path, os, signal
from leakscope.process.gc_control import CollectionWatch
from leakscope.process.guard import CLOCK, call_in_forked_child
from leakscope.process.patches import Patches
from leakscope.process.source.user_code import without_source
from leakscope.process.watchdog import stacks_of_threads
from leakscope.run.descriptors import Descriptor
from leakscope.run.kinds import Occasion
from leakscope.run.live import NAME as PROCESS
from leakscope.run.live import about_this_process, ask, times_asked
from leakscope.run.rows import Answer
from leakscope.run.writer import ASKED, RankFolder
from leakscope.shield import contextmanager

NAME = "asked_stacks.txt"
"""Where the rank's folder has the stacks."""
_SIGNAL = signal.SIGUSR1
_STATUS = Path("/proc/self/status")


class SignalHeard:
    """Listens from here on, where nobody else does; a handler that the script sets later takes the signal from us."""

    def __init__(self, path: Path, patches: Patches) -> None:
        self._path = path
        self._file: Descriptor | None = None
        self._size = 0
        self._listens = _is_free()
        if not self._listens:
            return
        patches.add("stack on SIGUSR1", self._leave)
        for name in ("register", "unregister"):
            patches.call_before(faulthandler, name, self._script_takes)
        call_in_forked_child(self._leave)
        self._register()

    def heard(self) -> bool:
        """Whether it came since this was asked last; to be asked at every tick."""
        if not self._listens:
            return False
        there = None if self._file is None else self._file.status()
        if there is None:  # the script has closed it, and opened one of its own by that number
            self._register()
            return False
        before, self._size = self._size, there.st_size
        return self._size > before

    def _register(self) -> None:
        try:
            self._file = Descriptor(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        except OSError:  # the disk is full, all files are open that may be, or the folder is gone
            self._leave()
            return
        self._size = 0
        if signal.getsignal(_SIGNAL) == signal.SIG_DFL:
            _REGISTER(_SIGNAL, file=self._file.number, all_threads=False, chain=False)

    def _script_takes(self, number: int = 0, *_: object, **more: object) -> None:
        if more.get("signum", number) == _SIGNAL:
            self._leave()

    def _leave(self) -> None:
        if not self._listens:
            return
        self._listens = False
        if signal.getsignal(_SIGNAL) == signal.SIG_DFL:  # else a handler of the script's would go
            _UNREGISTER(_SIGNAL)
        if self._file is not None:
            self._file.close()


_REGISTER, _UNREGISTER = faulthandler.register, faulthandler.unregister


def _is_free() -> bool:
    """Whether nothing in this process answers or ignores the signal, be it native code."""
    if signal.getsignal(_SIGNAL) != signal.SIG_DFL:
        return False
    try:
        lines = _STATUS.read_text().splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    except (OSError, ValueError, IndexError):  # no Linux: then what Python knows counts
        return True
    return not any(mask & 1 << (_SIGNAL - 1) for mask in masks)


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
        self._folder, self._file = options.folder, options.folder / ASKED
        self._source = options.source
        self._rank, self._collections = rank, collections
        self._write_about, self._look = write_about, look
        self._signal: SignalHeard | None = None
        self._asked = self._answered = 0
        self._since = 0.0
        self._step_seconds = 0.0
        self._stacks: tuple[str, ...] = ()

    def listen(self, patches: Patches) -> None:
        """Say who is asked; from here on SIGUSR1 asks as well."""
        self._rank.write(PROCESS, about_this_process())
        self._signal = SignalHeard(self._rank.path / NAME, patches)

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
        if self._signal is not None and self._signal.heard():
            with suppress(OSError):  # the folder is full or gone: nobody would read the answer
                ask(self._folder, by_signal=True)
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
