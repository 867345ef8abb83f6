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
from leakscope.heap.snapshot import LiveSnapshot, SnapshotContext, take_heap_snapshot
from leakscope.heap.snapshot import inspect as inspect_heap
from leakscope.heap.to_graph import GivenRoot
from leakscope.options import Options, launchers_number
from leakscope.originals import Path, _thread, fcntl, open_file, os
from leakscope.process.gc_control import SnapshotTimeout, deadline, freezing, script_freezes
from leakscope.process.guard import CLOCK, is_the_scripts
from leakscope.process.torch_compat import RecordingPart, lacks, sentences
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
"""Seconds after which a rank takes its snapshot without a turn. Heuristic."""
_INTERVAL_S = 0.005
"""Seconds between two attempts."""


class SnapshotQueue:
    """Limits concurrent heap snapshots to the number of cores.

    All at once would not finish sooner, and each needs memory. A rank with a turn waits for nobody, so it finishes even
    if all others wait for it in a collective. Uses a kernel lock on a file: a killed rank releases its turn.
    """

    def __init__(self, folder: Path, ranks: int, cores: int | None = None) -> None:
        """`ranks` share this machine; `folder`, common to all, is created if turns are needed."""
        at_once = _cores() if cores is None else cores
        machine = os.uname().nodename  # several may share the folder
        self._files = tuple(folder / f"{machine}_{k}" for k in range(at_once)) if ranks > at_once else ()

    def turn(self) -> PureBlock[None]:
        """Wait for a turn and hold it during the block; without file locks there is no waiting."""
        files: list[BinaryIO] = []

        def leave() -> None:
            for file in files:
                if not file.closed:
                    fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile has it too
                    file.close()

        return Block(lambda: self._wait(files), leave)

    def _wait(self, locked: list[BinaryIO]) -> None:
        """Lock one of the files, which becomes the last of `locked`."""
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
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_TIMEOUT_FACTOR = 10
"""Factor over the expected time after which a snapshot is aborted."""
_PER_BLOCK_S = 2e-6
"""Expected seconds per block allocated by CPython for the first snapshot: 0.35 to 0.65 microseconds with the Python
reader, 0.1 to 0.22 with the native one (0.6 and 1.5 million blocks, CPython 3.11, torch 2.13).
"""
_MIN_FORECAST_S = 3.0
"""Minimum expected seconds. Heuristic: a busy machine takes some for any heap."""
_MAX_FAILURES = 3
"""Consecutive failures after which no more snapshots are taken. Each may cost the script the time of its own timeout;
one or two may have met a single interrupt each.
"""
NO_ROOM = "it could have exceeded the memory limit of this process on the host"


class SnapshotTaker:
    """Takes the heap snapshots of one rank; the caller holds `lock`."""

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
        self._turns = SnapshotQueue(options.turns, launchers_number(os.environ, "LOCAL_WORLD_SIZE", options.world))
        self.limits = HostLimits()
        self._frozen = False
        self._limit_recorded = False
        self._gains = Gains()
        self._per_block = _PER_BLOCK_S
        for sentence in sentences():
            folder.note(sentence)
        self.given_up = False
        """Whether no more snapshots are taken: too many in a row have failed."""
        self._failed = 0
        """Consecutive attempts that failed or were interrupted."""
        self.work = 0.0
        """CPU seconds of the last snapshot, without time of other processes."""

    def take(self, step: int, occasion: Occasion, collect: bool) -> float:
        """Take one snapshot, and the real gc diff after it if requested; return the seconds. Failures become a note."""
        if lacks(RecordingPart.SNAPSHOTS):  # reported when recording began
            return 0.0
        collect = collect and not lacks(RecordingPart.COLLECTED)
        began, at_work, self.work = CLOCK.perf_counter(), CLOCK.thread_time(), 0.0
        if not self.limits.has_room_for_snapshot():
            self._folder.note(f"the heap snapshot at step {step} was skipped: {NO_ROOM}")
            return 0.0
        if script_freezes() and not self._frozen:
            self._frozen = True
            self._folder.note(
                f"the script called gc.freeze() before the heap snapshot at step {step}: frozen objects are never "
                "collected, and garbage among them is not detected"
            )
        with (
            self._turns.turn(),
            self._counter.ours(),
        ):  # outside of the `try`: what an error's frames hold is released when it is left
            started, forecast = CLOCK.perf_counter(), self._forecast()
            self._failed += 1
            try:
                with deadline(_TIMEOUT_FACTOR * forecast):
                    self._take(step, occasion, collect)
                self._per_block = (CLOCK.perf_counter() - started) / _blocks()
                self._failed = 0
            except SnapshotTimeout:
                self._per_block = (CLOCK.perf_counter() - started) / _blocks()
                self._folder.note(
                    f"the heap snapshot at step {step} timed out after {CLOCK.perf_counter() - started:.1f} s "
                    f"(expected {forecast:.1f} s)"
                )
            except Exception as error:  # reported as a note: an internal error must not fail the user's script
                if is_the_scripts(error):
                    raise
                self._folder.note(f"the heap snapshot at step {step} failed: {type(error).__name__}: {error}")
            finally:
                self.work = CLOCK.thread_time() - at_work
                if self._failed >= _MAX_FAILURES:
                    self._give_up(step)
        return CLOCK.perf_counter() - began

    def _give_up(self, step: int) -> None:
        self.given_up = True
        self._folder.note(
            f"no heap snapshots are taken after step {step}: {self._failed} in a row failed or were interrupted by an "
            "exception of the script"
        )

    def _forecast(self) -> float:
        """Expected seconds of a snapshot, from CPython's allocated blocks and the last snapshot."""
        return max(self._per_block * _blocks(), _MIN_FORECAST_S)

    def _take(self, step: int, occasion: Occasion, collect: bool) -> None:
        watched: Watched = []
        self.counts.now(step)
        context = replace(self._context(), gains=self._gains)
        least = None if self._limit_recorded else self.limits.lowest()
        snapshot = take_heap_snapshot(step, occasion, context, watched=watched if collect else None)
        del context
        self._folder.write_snapshot(snapshot)
        if not self._limit_recorded:
            self._limit_recorded = True
            if least is not None:
                self._folder.append(MemoryThere(least.limit, least.limit_bytes, least.used_bytes))
        if occasion == Occasion.LAST and self._options.prove and not lacks(RecordingPart.COLLECTED):
            self._prove(step)
        if collect:
            predicted = int(snapshot.heap.bytes[snapshot.heap.freed > 0].sum())
            storages = snapshot.heap.storages.tolist()
            del snapshot
            self._folder.gc_diff(real_diff(predicted, watched, occasion, storages))
            measured = freezing()
            if measured is not None:
                self._folder.append(measured)

    @contextmanager
    def inspect(self, step: int, occasion: Occasion) -> Iterator[LiveSnapshot]:
        """Yield the live heap for the duration of the block.

        Raises MemoryError if it does not fit, SnapshotTimeout if it is aborted.
        """
        if not self.limits.has_room_for_snapshot():
            raise MemoryError(NO_ROOM)
        at_work = CLOCK.thread_time()
        with (
            self._turns.turn(),
            self._counter.ours(),
            deadline(_TIMEOUT_FACTOR * self._forecast()),
            inspect_heap(step, occasion, self._context()) as live,
        ):
            yield live
        self.work = CLOCK.thread_time() - at_work

    def _context(self) -> SnapshotContext:
        comm = self.comm
        counted = self._counter.read()
        return SnapshotContext(
            counted_bytes=counted.bytes,
            peak_bytes=counted.peak,
            counted_on=self._counter.device,
            hidden=self.own_objects(),
            given=self._given,
            made_at=self._sites.made_at,
            comm_holds=() if comm is None else comm.holds(),
            comm_uses={} if comm is None else comm.last_uses(),
            blocks=None if self.device is None else self.device.block_reader(),
        )

    def _prove(self, step: int) -> None:
        with own_imports():
            from leakscope.recorder.verify_cut import verify_cuts
            from leakscope.run.reader import read_run

            run = read_run(self._options.folder)
        mine = next(rank for rank in run.ranks if rank.number == self._options.rank)
        context = self._context()
        known = SnapshotContext(
            hidden=context.hidden, given=context.given, comm_holds=context.comm_holds, comm_uses=context.comm_uses
        )
        self._folder.proved(verify_cuts(run, mine, step, known))

    def own_objects(self) -> tuple[object, ...]:
        """Objects of leakscope, which heap snapshots leave out."""
        comm = () if self.comm is None else self.comm.own_objects()
        return (self, *self.__dict__.values(), self.__dict__, *self._own(), *comm)


def _blocks() -> int:
    return sys.getallocatedblocks() or 1  # with PYTHONMALLOC=malloc none are counted
