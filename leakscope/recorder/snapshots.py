"""Takes heap snapshots and writes them, at most one a core at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

import leakscope.graph.serialize  # noqa: F401 - at the first snapshot the script may have all files open
from leakscope.bootstrap import own_imports
from leakscope.comm.monitor import CommMonitor
from leakscope.heap.garbage import Watched, real_diff
from leakscope.heap.growth import Gains
from leakscope.heap.snapshot import Live, LookContext
from leakscope.heap.snapshot import inspect as inspect_heap
from leakscope.heap.snapshot import look as look_at_heap
from leakscope.heap.to_graph import GivenRoot
from leakscope.options import Options, launchers_number
from leakscope.originals import Path, _thread, fcntl, open_file, os
from leakscope.process.gc_control import TakesTooLong, at_most, freezing, script_freezes
from leakscope.process.guard import CLOCK, is_the_scripts
from leakscope.process.torch_compat import Part, lacks, sentences
from leakscope.recorder.accelerator import Counter
from leakscope.recorder.allocator_monitor import DeviceMemory
from leakscope.recorder.lifetimes.dispatch_mode import AllocationSites
from leakscope.recorder.memory_limits import HostLimits
from leakscope.recorder.process_counters import Counts
from leakscope.run.descriptors import open_private
from leakscope.run.rows import MemoryThere, Occasion
from leakscope.run.writer import RankFolder, make_private
from leakscope.shield import Block, PureBlock, contextmanager

_TIMEOUT_S = 10.0
"""Seconds, chosen, after which a rank looks although it is nobody's turn to end."""
_INTERVAL_S = 0.005
"""Seconds between two tries."""


class Turns:
    """As many ranks of this machine look at a time as it has cores.

    They would not be through sooner all at once, and would all need the memory of a look. Who has a turn waits for
    nobody, so it goes on to the next one even where all the others wait in a collective for the one that looks. A lock
    of the kernel's on a file: a rank that is killed gives its turn back.
    """

    def __init__(self, folder: Path, ranks: int, cores: int | None = None) -> None:
        """`ranks` look on this machine; `folder`, which all of them share, is made where there are turns to take."""
        at_once = _cores() if cores is None else cores
        machine = os.uname().nodename  # several may share the folder
        self._files = tuple(folder / f"{machine}_{k}" for k in range(at_once)) if ranks > at_once else ()

    def turn(self) -> PureBlock[None]:
        """Wait for a turn and have it while the block runs; where no file can be locked it is always one's turn."""
        files: list[BinaryIO] = []

        def leave() -> None:
            for file in files:
                if not file.closed:
                    fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has it too
                    file.close()

        return Block(lambda: self._wait(files), leave)

    def _wait(self, locked: list[BinaryIO]) -> None:
        """Lock one of the files, which is the last of `locked` then."""
        if not self._files:
            return
        deadline = CLOCK.monotonic() + _TIMEOUT_S
        while CLOCK.monotonic() < deadline:
            for path in self._files:
                try:
                    make_private(path.parent)
                    locked.append(open_file(path, "ab", buffering=0, opener=open_private))
                except OSError:
                    return
                try:
                    fcntl.flock(locked[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    locked.pop().close()
                except OSError:  # a file system without locks
                    return
                else:
                    return
            CLOCK.sleep(_INTERVAL_S)


def _cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_MOST_TIMES = 10
"""A look that takes so many times as long as it should is given up."""
_PER_BLOCK_S = 2e-6
"""Seconds that the first look is to take for each block that CPython has allocated: with the Python reader it took 0.35
to 0.65 microseconds, with the native one 0.1 to 0.22 (0.6 and 1.5 million blocks, CPython 3.11, torch 2.13)."""
_LEAST_FORECAST_S = 3.0
"""Seconds, chosen: a machine that does other things as well takes some, however small the heap."""
_MOST_FAILED = 3
"""Attempts in a row after which no more looks are taken. Each of them may cost the script all the time that a timeout
of its own leaves it; one or two may have met a single interrupt each."""
NO_ROOM = "it would have come too near to the memory that the host lets this process have"


class Looks:
    """Takes the looks of one rank; whoever calls holds `lock`."""

    def __init__(
        self,
        options: Options,
        folder: RankFolder,
        counter: Counter,
        sites: AllocationSites,
        own: Callable[[], tuple[object, ...]],
        given: Sequence[GivenRoot] = (),
    ) -> None:
        self.lock = _thread.allocate_lock()
        self.comm: CommMonitor | None = None
        self.device: DeviceMemory | None = None
        self._options, self._folder, self._counter, self._sites = options, folder, counter, sites
        self._own, self._given = own, given
        self.counts = Counts(folder, options.budget)
        self._turns = Turns(options.turns, launchers_number(os.environ, "LOCAL_WORLD_SIZE", options.world))
        self.limits = HostLimits()
        self._frozen = False
        self._limit_told = False
        self._gains = Gains()
        self._per_block = _PER_BLOCK_S
        for sentence in sentences():
            folder.note(sentence)
        self.given_up = False
        """No more looks are taken: too many in a row have failed."""
        self._failed = 0
        """Attempts in a row that failed or were interrupted."""
        self.work = 0.0
        """Seconds of the processor that the last look took: what others did meanwhile, where cores are few, is not in
        it.
        """

    def take(self, step: int, occasion: Occasion, collect: bool) -> float:
        """One look, and the real gc diff after it where asked; gives the seconds. What fails becomes a note."""
        if lacks(Part.LOOKS):  # told when recording began
            return 0.0
        collect = collect and not lacks(Part.COLLECTED)
        began, at_work, self.work = CLOCK.perf_counter(), CLOCK.thread_time(), 0.0
        if not self.limits.room_for_a_look():
            self._folder.note(f"the look at step {step} was left out: {NO_ROOM}")
            return 0.0
        if script_freezes() and not self._frozen:
            self._frozen = True
            self._folder.note(
                f"the script had called gc.freeze() when step {step} was looked at: what was frozen is never "
                "collected, and garbage among it is not seen"
            )
        with (
            self._turns.turn(),
            self._counter.ours(),
        ):  # outside of the `try`: what an error's frames hold is gone when it is left
            started, forecast = CLOCK.perf_counter(), self._forecast()
            self._failed += 1
            try:
                with at_most(_MOST_TIMES * forecast):
                    self._take(step, occasion, collect)
                self._per_block = (CLOCK.perf_counter() - started) / _blocks()
                self._failed = 0
            except TakesTooLong:
                self._per_block = (CLOCK.perf_counter() - started) / _blocks()
                self._folder.note(
                    f"the look at step {step} was given up after {CLOCK.perf_counter() - started:.1f} s, where "
                    f"{forecast:.1f} s were to be expected"
                )
            except Exception as error:  # told as a note: the user's script must not fail of our looking
                if is_the_scripts(error):
                    raise
                self._folder.note(f"the look at step {step} failed: {type(error).__name__}: {error}")
            finally:
                self.work = CLOCK.thread_time() - at_work
                if self._failed >= _MOST_FAILED:
                    self._give_up(step)
        return CLOCK.perf_counter() - began

    def _give_up(self, step: int) -> None:
        self.given_up = True
        self._folder.note(
            f"no heap snapshot is taken after step {step}: {self._failed} in a row failed or were interrupted by an "
            "exception of the script's"
        )

    def _forecast(self) -> float:
        """Seconds that a look will take, by what CPython has allocated and by how long the last one took."""
        return max(self._per_block * _blocks(), _LEAST_FORECAST_S)

    def _take(self, step: int, occasion: Occasion, collect: bool) -> None:
        watched: Watched = []
        self.counts.now(step)
        context = replace(self._context(), gains=self._gains)
        least = None if self._limit_told else self.limits.least()
        look = look_at_heap(step, occasion, context, watched=watched if collect else None)
        del context
        self._folder.look(look)
        if not self._limit_told:
            self._limit_told = True
            if least is not None:
                self._folder.append(MemoryThere(least.limit, least.limit_bytes, least.used_bytes))
        if occasion == Occasion.LAST and self._options.prove and not lacks(Part.COLLECTED):
            self._prove(step)
        if collect:
            predicted = int(look.heap.bytes[look.heap.freed > 0].sum())
            storages = look.heap.storages.tolist()
            del look
            self._folder.gc_diff(real_diff(predicted, watched, occasion, storages))
            measured = freezing()
            if measured is not None:
                self._folder.append(measured)

    @contextmanager
    def inspect(self, step: int, occasion: Occasion) -> Iterator[Live]:
        """The live heap, for as long as the block runs.

        Raises MemoryError where there is no room for it, TakesTooLong where it is given up.
        """
        if not self.limits.room_for_a_look():
            raise MemoryError(NO_ROOM)
        at_work = CLOCK.thread_time()
        with (
            self._turns.turn(),
            self._counter.ours(),
            at_most(_MOST_TIMES * self._forecast()),
            inspect_heap(step, occasion, self._context()) as live,
        ):
            yield live
        self.work = CLOCK.thread_time() - at_work

    def _context(self) -> LookContext:
        comm = self.comm
        counted = self._counter.read()
        return LookContext(
            counted_bytes=counted.bytes,
            peak_bytes=counted.peak,
            counted_on=self._counter.device,
            hidden=self.own_objects(),
            given=self._given,
            made_at=self._sites.made_at,
            comm_holds=() if comm is None else comm.holds(),
            comm_uses={} if comm is None else comm.last_uses(),
            blocks=None if self.device is None else self.device.one_look(),
        )

    def _prove(self, step: int) -> None:
        with own_imports():
            from leakscope.recorder.verify_cut import prove
            from leakscope.run.reader import read_run

            run = read_run(self._options.folder)
        mine = next(rank for rank in run.ranks if rank.number == self._options.rank)
        context = self._context()
        known = LookContext(
            hidden=context.hidden, given=context.given, comm_holds=context.comm_holds, comm_uses=context.comm_uses
        )
        self._folder.proved(prove(run, mine, step, known))

    def own_objects(self) -> tuple[object, ...]:
        """Objects of leakscope's own, which no look must show."""
        comm = () if self.comm is None else self.comm.own_objects()
        return (self, *self.__dict__.values(), self.__dict__, *self._own(), *comm)


def _blocks() -> int:
    return sys.getallocatedblocks() or 1  # with PYTHONMALLOC=malloc none is counted
