"""The recorder of one rank: membership in the run, watched steps, and the source of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from leakscope.comm.monitor import CommMonitor, is_there
from leakscope.dataloader.monitor import LoaderWorkers
from leakscope.heap.snapshot import LiveSnapshot
from leakscope.heap.to_graph import GivenRoot
from leakscope.options import Options, When
from leakscope.originals import Path, _thread
from leakscope.process.children import OwnProcesses, is_followed
from leakscope.process.gc_control import CollectionWatch
from leakscope.process.guard import CLOCK, in_forked_child, untraced
from leakscope.process.patches import Patches, exclude_from_dynamo
from leakscope.process.torch_compat import RecordingPart, lacks
from leakscope.process.watchdog import STACKS, HangDetector, Stop, Watchdog
from leakscope.recorder.accelerator import Counter
from leakscope.recorder.allocator_monitor import DeviceMemory
from leakscope.recorder.lifetimes.dispatch_mode import AllocationSites
from leakscope.recorder.lifetimes.tracker import LifetimeTracker
from leakscope.recorder.memory_pressure import MemoryPressure
from leakscope.recorder.snapshots import SnapshotTaker
from leakscope.recorder.steps.detector import MARK, StepDetector, StepEnd, StepEvents
from leakscope.recorder.steps.inputs import StepInputs
from leakscope.recorder.steps.peers import SNAPSHOT_TIMEOUT_S, Peers, RankStateFile, call_ahead_of_comm
from leakscope.recorder.steps.policy import Schedule, SnapshotRequests
from leakscope.recorder.steps.rank_exit import MissingStepWarning, RankExit, missing_step_hints
from leakscope.run.model import Ended, Step
from leakscope.run.rows import Occasion, StepsBy, StepSourceKind
from leakscope.run.writer import RankFolder
from leakscope.shield import contextmanager, ending_with

if TYPE_CHECKING:
    from leakscope.recorder.training_state import TrainingStateRecorder


class RankMembership:
    """The rank of this process and its communication monitor."""

    def __init__(
        self, options: Options, folder: RankFolder, patches: Patches, peers: Peers, taker: SnapshotTaker
    ) -> None:
        self._options, self._folder, self._patches = options, folder, patches
        self._peers, self._taker = peers, taker
        self._poll: Callable[..., None] = lambda: None
        self.comm: CommMonitor | None = None
        self.stuck: HangDetector | None = None
        self.stop: type[Stop] = Stop
        """The exception raised when a run with `steps` is over."""
        self.first_step: Callable[[], object] = lambda: None
        """Called after the first step."""

    def attach(self, poll: Callable[..., None]) -> None:
        """Follow comm operations, now or once there are other ranks; `poll` is called before each."""
        self._poll = poll
        if self._options.world > 1:
            self._listen()

    def join(self, rank: int, world: int, states: Path) -> None:
        """Become this rank among so many, whose states are in the file `states`."""
        self._peers.join(rank, world, states)
        if self.comm is None:
            self._listen()

    def note(self, text: str) -> None:
        """Add a note to this process's part of the report."""
        self._folder.note(text)

    def _listen(self) -> None:
        if is_there():
            self.comm = self._taker.comm = CommMonitor(self._folder, self._patches)
            call_ahead_of_comm(self._poll, self._patches)
            self.stuck = HangDetector(self._folder.path / STACKS, self._patches, self._options.hang_timeout, self.comm)


class WatchedSteps:
    """Watches the last warm-up step for allocation sites, and pairs of steps after it for lifetimes."""

    def __init__(
        self,
        options: Options,
        folder: RankFolder,
        sites: AllocationSites,
        device: DeviceMemory,
        lifetimes: LifetimeTracker,
    ) -> None:
        self._options, self._folder = options, folder
        self._sites, self._device, self._lifetimes = sites, device, lifetimes
        self._since = 0

    def install(self, patches: Patches, comm: bool) -> None:
        """Install what must be in place before the first step; `comm` if comm operations are followed."""
        if lacks(RecordingPart.WATCHED):
            return
        if self._options.lifetimes:
            self._lifetimes.install(patches, comm=comm)
        patches.call_before_tracing(self._before_compile)
        guard = patches.guard
        guard.at_end += [lambda _: guard.later.append(self.leave), lambda _: guard.try_again()]

    def restart(self, step: int) -> None:
        """Restart the count after this step, at which another step source took over."""
        self._since = step
        self._lifetimes.begin_after(step + self._options.warmup)

    def step_ended(self, step: int) -> None:
        """Start or end watching at the end of this step, and write the results."""
        if lacks(RecordingPart.WATCHED):
            return
        if self._sites.watching:
            self._sites.leave()
        elif step == self._since + self._options.warmup - 1:
            reason = self._sites.enter(self._lifetimes.compile_called)
            if reason and not self._device.has_allocation_sites():
                self._folder.note(reason)
        watched = self._lifetimes.boundary(step) if self._options.lifetimes else None
        if watched is not None:
            if watched.snapshot is not None:
                self._folder.write_snapshot(watched.snapshot)
            for row in watched.rows:
                self._folder.append(row)

    def leave(self) -> bool:
        """Stop watching; False while a mode of the script is above ours, or ours runs: neither is popped."""
        left = self._sites.leave()
        return self._lifetimes.leave() and left

    def _before_compile(self, *_: Any, **__: Any) -> None:
        if self._sites.watching and self._sites.leave():
            self._folder.note("allocation sites were recorded only until the script called torch.compile")
        self._lifetimes.script_compiles()


class StepSourceSwitch:
    """Restarts warm-up, snapshots and end when a better step signal appears; step numbers continue.

    What the first signal ended was no step of the training: an evaluation before it, or the microbatches of a step.
    """

    def __init__(self, folder: RankFolder, schedule: Schedule, watched_steps: WatchedSteps) -> None:
        self._folder, self._schedule, self._watched_steps = folder, schedule, watched_steps
        self._by: StepsBy | None = None

    def expect(self, function: str, missing: bool = False) -> None:
        """Let only returns of this function end steps, even if there are none; `missing` if it does not exist."""
        self._by = StepsBy(StepSourceKind.FUNCTION, function, 0, missing)
        self._folder.append(self._by)

    def note(self, end: StepEnd, steps: int) -> None:
        """Record the end of a step, after `steps` of them."""
        by = self._by
        if by is not None and (by.clock, by.name) == end:
            return
        since = 0 if by is None else by.since if by.clock == end.source else steps
        self._by = StepsBy(end.source, end.name, since)
        self._folder.append(self._by)
        if by is not None and since != by.since:
            self._schedule.restart(since)
            self._watched_steps.restart(since)

    def own(self, steps: int) -> int:
        """Number of steps ended by the current step source."""
        return steps - (0 if self._by is None else self._by.since)


LONG_STEP_S = 1.0
"""Seconds after which limits are read in the middle of a step."""


class Recorder:
    """The recorder of a rank, attached once torch is imported; every change to the process is in `patches` and undone
    at the end.
    """

    def __init__(self, options: Options, patches: Patches | None = None, given: Sequence[GivenRoot] = ()) -> None:
        self.options = options
        self.patches = Patches() if patches is None else patches
        self.steps = 0
        self.stopped = False
        self._guard = guard = self.patches.guard
        self._step_over = guard.untraced("end of a step", self._step)
        self._folder = RankFolder(options.folder, options.rank, options.process)
        self._rank_state = RankStateFile(options.rank_state, options.rank, options.world)
        self._counter = Counter()
        self._collections = CollectionWatch(lambda: self._counter.read().bytes)
        guard.gc_neutral = self._collections.gc_neutral
        self._schedule = Schedule(options.warmup, options.steps, options.budget)
        self._sites = AllocationSites(self.patches.part())
        self._taker = SnapshotTaker(options, self._folder, self._counter, self._sites, self._own_objects, given)
        self._peers = Peers(
            self._rank_state, self._schedule, options, self._snapshot_for_peers,
            lambda failing: self._pressure.snapshot_for_peer(self.steps, failing),
        )  # fmt: skip
        self.member = RankMembership(options, self._folder, self.patches, self._peers, self._taker)
        self._lifetimes = LifetimeTracker(options.warmup, self._at_peak, lambda: self._counter.fullest, self._sites.add)
        self._device = self._taker.device = DeviceMemory(self._folder, options.snapshot, options.budget)
        self._watched_steps = WatchedSteps(options, self._folder, self._sites, self._device, self._lifetimes)
        self._loaders = LoaderWorkers(self._folder, self._schedule)
        self._inputs = StepInputs()
        self._training: TrainingStateRecorder | None = None
        self._switch = StepSourceSwitch(self._folder, self._schedule, self._watched_steps)
        self._no_step: MissingStepWarning | None = None
        self._detector: StepDetector | None = None
        self._watchdog = Watchdog(self.is_over, self._tick, self._leave, options.grace)
        self._watchdog.ends_with(options.launcher, self._orphaned)
        self._in_forked_child = in_forked_child()
        self._ends = RankExit(self._folder, self._rank_state, self._counter, options.source)
        self._is_about_written = False
        self._requests = SnapshotRequests(
            options, self._folder, self._collections, self._ends.write_about, self._snapshot
        )
        guard.at_end += [lambda why: self._ends.recording_ended(self.steps, why), lambda _: self._ends.lost()]
        self._pressure = MemoryPressure(
            self._folder, self._rank_state, self._collections, self._taker, self._device.failures, self._peers,
            self._watchdog, self._snapshot,
        )  # fmt: skip
        self._snapshot_uncaught = guard.untraced("error of the script", self._pressure.snapshot_uncaught_failure)
        self._home = _thread.get_ident()
        self._stepping = _thread.RLock()
        """Held while a step ends: several threads may end steps."""
        self._began = self._attached = CLOCK.perf_counter()
        self._peak: int | None = None

    def attach(self) -> None:
        """Start recording."""
        options = self.options
        self._collections.install(self.patches)
        self._guard.steps = self._device.failures.steps = lambda: self.steps
        self._device.failures.snapshot = lambda: self._pressure.snapshot_device_failure(self.steps)
        self._device.attach(self.patches)
        self._loaders.install(self.patches)
        if options.checksums:
            from leakscope.recorder.training_state import TrainingStateRecorder

            self._training = TrainingStateRecorder(self._folder)
            self._training.install(self.patches)
        if not options.by_hand:
            if options.step_function is not None:
                self._switch.expect(options.step_function)
                # the script may compile the function that ends its steps
                exclude_from_dynamo(self.patches, self._folder.note)
            else:
                self._detector = StepDetector(self._peers.step_alone, self._guard)
                StepEvents(self._detector, self.step_ended).install(self.patches)
            processes = OwnProcesses(self._folder.append, is_followed if options.process else None)
            processes.install(self.patches)
            if options.rank == 0 and not options.quiet:
                self._no_step = MissingStepWarning(options.step_function, processes)
            self.member.attach(self._before_comm)
            self._requests.begin()
            self._watchdog.start(self._guard)
            self.patches.add("watchdog thread", self._watchdog.end)
        self._inputs.install(self.patches)
        self._watched_steps.install(self.patches, comm=self.member.comm is not None)
        self._began = self._attached = CLOCK.perf_counter()
        self._peers.begin()

    # steps

    def step_ended(self, end: StepEnd) -> None:
        """Called at the end of an inferred step; raises Stop as `boundary` does."""
        if self._guard.disabled:
            return
        self._home = _thread.get_ident()
        self.boundary(end)

    def step_function_is_missing(self) -> None:
        """Called if the script has ended without defining or importing the step function."""
        if not self._guard.disabled:
            self._switch.expect(self.options.step_function or "", missing=True)

    @untraced
    def boundary(self, end: StepEnd = MARK) -> None:
        """Handle the end of a step: read the counters, take a snapshot if one is due, and stop if the run is over.

        Raises Stop if a run with `steps` is over.
        """
        if self._guard.disabled or self._collections.is_within():
            return
        try:
            with self._stepping, self._collections.suspended():
                self._switch.note(end, self.steps)
                if self._schedule.steps is None or self.steps < self._schedule.steps:
                    self._step_over()
            over = self.is_over()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
            self._guard.internal_error("end of a step", error)
            return
        finally:
            self._began = CLOCK.perf_counter()
        if over:
            self._stop()

    def _step(self) -> None:
        ended = CLOCK.perf_counter()
        if self._training is not None:
            module = None if self._detector is None else self._detector.called_module
            self._training.step_ended(self.steps + 1, module)
        counted = self._counter.read()
        peak, self._peak = (counted.peak if counted.peak != self._peak else None), counted.peak
        self.steps += 1
        if self.steps == 1:
            self.member.first_step()
        seconds, collections = ended - self._began, self._collections.taken()
        began = round(self._began - (self._attached if self.member.comm is None else self.member.comm.zero), 6)
        device = self._counter.device
        self._folder.step(
            Step(self.steps, seconds, counted.bytes, peak, collections, device, began, *self._inputs.taken())
        )
        wanted = self._requests.step_ended(seconds)
        self._device.step(self.steps, ended - self._attached)
        self._taker.counts.step(self.steps, ended - self._attached)
        if self.member.comm is not None:
            self.member.comm.step_ended(self.steps)
        self._watched_steps.step_ended(self.steps)
        self._pressure.snapshot_if_near_limit(self.steps, inside=False, counted=counted.bytes)
        self._peers.answer_if_one_failed()
        self._schedule.also(self._loaders.step_ended(self.steps) - ended + CLOCK.perf_counter())
        if self.steps == self._schedule.steps:
            self._take_last_snapshot()
        else:
            own = self._switch.own(self.steps)
            if self._peers.snapshot_is_due(self.steps, own, ended - self._attached, counted.bytes, wanted):
                self._snapshot(self.steps, Occasion.STEP)
            self._rank_state.update(steps=own)

    @contextmanager
    def _at_peak(self, step: int, occasion: Occasion) -> Iterator[LiveSnapshot]:
        """The heap in the middle of a step, for lifetimes."""
        began = CLOCK.perf_counter()
        with self._collections.suspended(), self._taker.lock, self._taker.inspect(step, occasion) as live:
            yield live
        seconds = CLOCK.perf_counter() - began
        self._watchdog.extend(seconds)
        self._schedule.also(seconds, self._taker.work)

    def _take_last_snapshot(self) -> None:
        self._snapshot(self.steps, Occasion.LAST, collect=self.options.gc_diff != When.NEVER)
        self._rank_state.update(steps=self._switch.own(self.steps))
        self._peers.wait_at_last_step()

    def _snapshot(self, step: int, occasion: Occasion, collect: bool = False) -> None:
        if self._taker.given_up:
            return
        with self._taker.lock, self._rank_state.taking_snapshot(), self._requests.answering(step, occasion):
            # before the attempt: one that the script interrupts is not due again at the next step
            self._schedule.attempted(step, occasion in (Occasion.STEP, Occasion.PEER))
            began = CLOCK.perf_counter()
            try:
                self._taker.take(step, occasion, collect)
                if not self._is_about_written:  # a killed rank cannot write it at its end
                    self._is_about_written = True
                    self._ends.write_about()
            finally:
                seconds = CLOCK.perf_counter() - began
                self._watchdog.extend(seconds)
                self._schedule.taken(seconds, self._taker.work)
                self._rank_state.update(spent=self._schedule.with_one_more)

    def _snapshot_for_peers(self, step: int) -> None:
        if self.member.comm is not None:
            self.member.comm.step_ended(step)
        with self._collections.suspended():
            self._snapshot(step, Occasion.PEER)

    def _own_objects(self) -> tuple[object, ...]:
        training = () if self._training is None else self._training.own_objects()
        return (self, *self.__dict__.values(), self.__dict__, self.member.__dict__, *training)

    def is_over(self) -> bool:
        """Whether the run is over: this rank was told to stop, or all have taken their steps."""
        return self.stopped or self._peers.all_over()

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            try:
                self._ends.stopped(self.steps)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                self._guard.internal_error("stop of the run", error)
        raise self.member.stop

    def _before_comm(self, *_: Any, **__: Any) -> None:
        if _thread.get_ident() != self._home or self._taker.lock.locked():
            return
        if self.steps == 0:
            self._peers.snapshot_if_peers_stepped()
        self._peers.answer_if_one_failed()
        if self.is_over():
            self._stop()

    def _tick(self) -> None:
        """Called by the watchdog's thread."""
        if self.member.comm is not None:
            self.member.comm.tick()
        taking_snapshot = self._taker.lock.locked() or self._peers.any_taking_snapshot()
        if self._no_step is not None:
            self._no_step.tick(self._peers.any_stepped())
        if self.member.stuck is not None and self.member.stuck.is_hung(taking_snapshot):
            last = "" if self.member.comm is None else self.member.comm.last_words()
            self._ends.exit_hung(self.steps, self.options.hang_timeout or 0.0, last, self._home)
        if self._taker.lock.locked():
            return
        # a step that soon ends takes its snapshot itself, while the script allocates nothing
        if CLOCK.perf_counter() - self._began > LONG_STEP_S:
            self._pressure.snapshot_if_near_limit(self.steps, inside=True)
        if not self.steps:
            self._peers.snapshot_on_watchdog_thread()
        self._peers.answer_on_watchdog_thread()
        self._requests.tick(self.steps, taking_snapshot)

    def _leave(self) -> None:
        self._taker.lock.acquire(timeout=SNAPSHOT_TIMEOUT_S)
        self._ends.leave(self.steps, written=self.stopped)

    def _orphaned(self) -> None:
        self._ends.orphaned(lambda: self.steps, self._taker.lock, self.member.comm)

    # the end

    @untraced
    def failed(self, error: BaseException | None) -> None:
        """The script's main code raised: snapshot a failed allocation while its traceback's frames are alive."""
        try:
            if not self._guard.disabled:
                self._snapshot_uncaught(self.steps, error)
        except Exception as ours:  # noqa: BLE001 - whatever it is, it must not become the script's
            self._guard.internal_error("error of the script", ours)

    def abandon(self) -> None:
        """Remove everything from the process. Idempotent."""
        if self._in_forked_child:
            return
        guard = self._guard
        self.patches.take_out()
        guard.call("closing of the folder", self._folder.close, even_lost=True)
        guard.call("closing of the rank's state", self._rank_state.close, even_lost=True)
        guard.release()

    @untraced
    @ending_with(abandon)
    def finish(self, ended: Callable[[int], Ended], with_snapshot: bool) -> None:
        """Take a last snapshot if requested, remove everything, and record how it ended; raises no
        error of leakscope.
        """
        if self._in_forked_child:
            return
        guard = self._guard
        guard.call("end of the rank", self._write_the_end, ended, with_snapshot)
        if guard.lost:
            guard.call("final record of the rank", lambda: self._ends.ended(ended(self.steps)), even_lost=True)

    def _write_the_end(self, ended: Callable[[int], Ended], with_snapshot: bool) -> None:
        self._collections.over = True
        if not with_snapshot:  # written again below; a peer that fails because of this may have this rank ended before
            self._folder.ended(ended(self.steps))
        self._watched_steps.leave()
        self._lifetimes.forget()
        if with_snapshot:
            self._snapshot(self.steps, Occasion.END, collect=self.options.gc_diff == When.ALWAYS)
        self._sites.forget()
        for sentence in missing_step_hints(self._detector) if not self.steps else ():
            self._folder.note(sentence)
        if self.options.prove and self.steps < (self._schedule.steps or 0):
            self._folder.note(
                f"no cut was verified: the script ended after {self.steps} of {self._schedule.steps} steps"
            )
        self._ends.ended(ended(self.steps))
