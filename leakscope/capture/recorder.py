"""Records one rank: counters at every step, looks at some of them, and how it all ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from leakscope.capture.asked.asked import Asked
from leakscope.capture.device.counters import Counter
from leakscope.capture.device.monitor import DeviceMemory
from leakscope.capture.follow.tree import is_followed
from leakscope.capture.heap.look import Live
from leakscope.capture.heap.python.beginnings import GivenRoot
from leakscope.capture.lifetimes.allocation_sites import AllocationSites
from leakscope.capture.lifetimes.tracker import LifetimeTracker
from leakscope.capture.looks import Looks
from leakscope.capture.member import Member
from leakscope.capture.process.child_processes import OwnProcesses
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.dynamo import leave_us_out
from leakscope.capture.process.forks import in_forked_child
from leakscope.capture.process.gc_callbacks import CollectionWatch
from leakscope.capture.process.patches import Patches
from leakscope.capture.process.unheard import unheard
from leakscope.capture.process.watchdog import Watchdog
from leakscope.capture.schedule.ends import Ends
from leakscope.capture.schedule.events import StepEvents
from leakscope.capture.schedule.handover import Handover
from leakscope.capture.schedule.inputs import StepInputs
from leakscope.capture.schedule.looks import Schedule
from leakscope.capture.schedule.no_step import NoStepYet, what_was_not_heard
from leakscope.capture.schedule.peers import LOOK_TIMEOUT_S, Peers
from leakscope.capture.schedule.rank_state import RankStateFile
from leakscope.capture.schedule.steps import MARK, StepClock, Tick
from leakscope.capture.shortages import Shortages
from leakscope.capture.watched_steps import WatchedSteps
from leakscope.capture.workers.loaders import LoaderWorkers
from leakscope.option import When
from leakscope.options import Options
from leakscope.originals import _thread
from leakscope.record.folder import RankFolder
from leakscope.record.kinds import Occasion
from leakscope.record.model import Ended, Step
from leakscope.shield import contextmanager, ending_with

LONG_STEP_S = 1.0
"""Seconds after which limits are asked for in the middle of a step."""


class Recorder:
    """Attached once torch is there; everything it puts into the process is in `patches` and taken out at the end."""

    def __init__(self, options: Options, patches: Patches | None = None, given: Sequence[GivenRoot] = ()) -> None:
        self.options = options
        self.patches = Patches() if patches is None else patches
        self.steps = 0
        self.stopped = False
        self._guard = guard = self.patches.guard
        self._step_over = guard.entry("end of a step", self._step)
        self._folder = RankFolder(options.folder, options.rank, options.elsewhere, options.process)
        self._rank_state = RankStateFile(options.rank_state, options.rank, options.world)
        self._counter = Counter()
        self._collections = CollectionWatch(lambda: self._counter.read().bytes)
        guard.weightless = self._collections.weightless
        self._schedule = Schedule(options.warmup, options.steps, options.budget)
        self._sites = AllocationSites(self.patches.part())
        self._looks = Looks(options, self._folder, self._counter, self._sites, self._own_objects, given)
        self._peers = Peers(
            self._rank_state, self._schedule, options, self._look_as_peer,
            lambda failing: self._shortages.look_for_peer(self.steps, failing),
        )  # fmt: skip
        self.member = Member(options, self._folder, self.patches, self._peers, self._looks)
        self._lifetimes = LifetimeTracker(
            options.warmup, self._at_peak, lambda: self._counter.fullest, self._sites.know
        )
        self._device = self._looks.device = DeviceMemory(self._folder, options.snapshot, options.budget)
        self._watched_steps = WatchedSteps(options, self._folder, self._sites, self._device, self._lifetimes)
        self._loaders = LoaderWorkers(self._folder, self._schedule)
        self._inputs = StepInputs()
        self._handover = Handover(self._folder, self._schedule, self._watched_steps)
        self._no_step: NoStepYet | None = None
        self._clock: StepClock | None = None
        self._watchdog = Watchdog(self.is_over, self._tick, self._leave, options.grace)
        self._watchdog.ends_with(options.launcher, self._orphaned)
        self._in_forked_child = in_forked_child()
        self._ends = Ends(self._folder, self._rank_state, self._counter, options.source)
        self._is_about_written = False
        self._asked = Asked(options, self._folder, self._collections, self._ends.write_about, self._look)
        guard.at_end += [lambda why: self._ends.recording_ended(self.steps, why), lambda _: self._ends.lost()]
        self._shortages = Shortages(
            self._folder, self._rank_state, self._collections, self._looks, self._device.failures, self._peers,
            self._watchdog, self._look,
        )  # fmt: skip
        self._look_at_uncaught = guard.entry("error of the script", self._shortages.look_at_uncaught)
        self._home = _thread.get_ident()
        self._stepping = _thread.RLock()
        """Held while a step ends: several threads may end steps."""
        self._began = self._attached = CLOCK.perf_counter()
        self._peak: int | None = None

    def attach(self) -> None:
        """Start listening."""
        options = self.options
        self._collections.install(self.patches)
        self._guard.steps = self._device.failures.steps = lambda: self.steps
        self._device.failures.look = lambda: self._shortages.look_at_device_failure(self.steps)
        self._device.attach(self.patches)
        self._loaders.install(self.patches)
        if not options.by_hand:
            if options.step_function is not None:
                self._handover.expect(options.step_function)
                leave_us_out(self.patches, self._folder.note)  # the script may compile what ends its steps
            else:
                self._clock = StepClock(self._peers.step_alone, self._guard)
                StepEvents(self._clock, self.step_ended).install(self.patches)
            processes = OwnProcesses(self._folder.append, is_followed if options.process else None)
            processes.install(self.patches)
            if options.rank == 0 and not options.quiet:
                self._no_step = NoStepYet(options.step_function, processes)
            self.member.attach(self._before_comm)
            self._asked.listen(self.patches)
            self._watchdog.start(self._guard)
            self.patches.add("watchdog thread", self._watchdog.end)
        self._inputs.install(self.patches)
        self._watched_steps.install(self.patches, comm=self.member.comm is not None)
        self._began = self._attached = CLOCK.perf_counter()
        self._peers.begin()

    # steps

    def step_ended(self, tick: Tick) -> None:
        """A step is over, in a run whose steps nobody marks; raises Stop as `boundary` does."""
        if self._guard.deaf:
            return
        self._home = _thread.get_ident()
        self.boundary(tick)

    def step_function_is_missing(self) -> None:
        """The script has ended, and neither defined nor imported such a function."""
        if not self._guard.deaf:
            self._handover.expect(self.options.step_function or "", missing=True)

    @unheard
    def boundary(self, tick: Tick = MARK) -> None:
        """The end of a step: read the counters, look if one is due, and stop if the run is over.

        Raises Stop where a run with `steps` is over.
        """
        if self._guard.deaf or self._collections.is_within():
            return
        try:
            with self._stepping, self._collections.not_listening():
                self._handover.note(tick, self.steps)
                if self._schedule.steps is None or self.steps < self._schedule.steps:
                    self._step_over()
            over = self.is_over()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
            self._guard.fault("end of a step", error)
            return
        finally:
            self._began = CLOCK.perf_counter()
        if over:
            self._stop()

    def _step(self) -> None:
        ended = CLOCK.perf_counter()
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
        wanted = self._asked.step_ended(seconds)
        self._device.step(self.steps, ended - self._attached)
        self._looks.counts.step(self.steps, ended - self._attached)
        if self.member.comm is not None:
            self.member.comm.step_ended(self.steps)
        self._watched_steps.step_ended(self.steps)
        self._shortages.look_if_near(self.steps, inside=False, counted=counted.bytes)
        self._peers.answer_if_one_failed()
        self._schedule.also(self._loaders.step_ended(self.steps) - ended + CLOCK.perf_counter())
        if self.steps == self._schedule.steps:
            self._finish_looking()
        else:
            own = self._handover.own(self.steps)
            if self._peers.look_is_due(self.steps, own, ended - self._attached, counted.bytes, wanted):
                self._look(self.steps, Occasion.STEP)
            self._rank_state.update(steps=own)

    @contextmanager
    def _at_peak(self, step: int, occasion: Occasion) -> Iterator[Live]:
        """The heap in the middle of a step, for the lifetimes."""
        began = CLOCK.perf_counter()
        with self._collections.not_listening(), self._looks.lock, self._looks.inspect(step, occasion) as live:
            yield live
        seconds = CLOCK.perf_counter() - began
        self._watchdog.extend(seconds)
        self._schedule.also(seconds, self._looks.work)

    def _finish_looking(self) -> None:
        self._look(self.steps, Occasion.LAST, collect=self.options.gc_diff != When.NEVER)
        self._rank_state.update(steps=self._handover.own(self.steps))
        self._peers.wait_at_last_step()

    def _look(self, step: int, occasion: Occasion, collect: bool = False) -> None:
        if self._looks.given_up:
            return
        with self._looks.lock, self._rank_state.looked_at(), self._asked.answering(step, occasion):
            # ahead of the attempt: one that the script interrupts is not due again at the next step
            self._schedule.begun(step, occasion in (Occasion.STEP, Occasion.PEER))
            began = CLOCK.perf_counter()
            try:
                self._looks.take(step, occasion, collect)
                if not self._is_about_written:  # a rank that is killed does not come to write it at its end
                    self._is_about_written = True
                    self._ends.write_about()
            finally:
                seconds = CLOCK.perf_counter() - began
                self._watchdog.extend(seconds)
                self._schedule.taken(seconds, self._looks.work)
                self._rank_state.update(spent=self._schedule.with_one_more)

    def _look_as_peer(self, step: int) -> None:
        if self.member.comm is not None:
            self.member.comm.step_ended(step)
        with self._collections.not_listening():
            self._look(step, Occasion.PEER)

    def _own_objects(self) -> tuple[object, ...]:
        return (self, *self.__dict__.values(), self.__dict__, self.member.__dict__)

    def is_over(self) -> bool:
        """Has the run come to its end: was this rank told to stop, or have all taken their steps?"""
        return self.stopped or self._peers.all_over()

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            try:
                self._ends.stopped(self.steps)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                self._guard.fault("stop of the run", error)
        raise self.member.stop

    def _before_comm(self, *_: Any, **__: Any) -> None:
        if _thread.get_ident() != self._home or self._looks.lock.locked():
            return
        if self.steps == 0:
            self._peers.look_if_they_stepped()
        self._peers.answer_if_one_failed()
        if self.is_over():
            self._stop()

    def _tick(self) -> None:
        """Called by the watchdog's thread."""
        if self.member.comm is not None:
            self.member.comm.tick()
        looked_at = self._looks.lock.locked() or self._peers.somebody_looks()
        if self._no_step is not None:
            self._no_step.tick(self._peers.somebody_stepped())
        if self.member.stuck is not None and self.member.stuck.is_hung(looked_at):
            last = "" if self.member.comm is None else self.member.comm.last_words()
            self._ends.leave_hung(self.steps, self.options.hang_timeout or 0.0, last, self._home)
        if self._looks.lock.locked():
            return
        # a step that is soon over looks by itself, while the script allocates nothing
        if CLOCK.perf_counter() - self._began > LONG_STEP_S:
            self._shortages.look_if_near(self.steps, inside=True)
        if not self.steps:
            self._peers.look_on_watchdog_thread()
        self._peers.answer_on_watchdog_thread()
        self._asked.tick(self.steps, looked_at)

    def _leave(self) -> None:
        self._looks.lock.acquire(timeout=LOOK_TIMEOUT_S)
        self._ends.leave(self.steps, written=self.stopped)

    def _orphaned(self) -> None:
        self._ends.orphaned(lambda: self.steps, self._looks.lock, self.member.comm)

    # the end

    @unheard
    def failed(self, error: BaseException | None) -> None:
        """The script's main code raised: an allocation that failed is looked at while its traceback's frames live."""
        try:
            if not self._guard.deaf:
                self._look_at_uncaught(self.steps, error)
        except Exception as ours:  # noqa: BLE001 - whatever it is, it must not become the script's
            self._guard.fault("error of the script", ours)

    def abandon(self) -> None:
        """Take everything out of the process. To be called twice is as good as once."""
        if self._in_forked_child:
            return
        guard = self._guard
        self.patches.take_out()
        guard.call("closing of the folder", self._folder.close, even_lost=True)
        guard.call("closing of the rank's state", self._rank_state.close, even_lost=True)
        guard.let_go()

    @unheard
    @ending_with(abandon)
    def finish(self, ended: Callable[[int], Ended], look: bool) -> None:
        """Take a last look if asked to, take everything out, and write how it ended; no error of ours comes through."""
        if self._in_forked_child:
            return
        guard = self._guard
        guard.call("end of the rank", self._write_the_end, ended, look)
        if guard.lost:
            guard.call("last word of the rank", lambda: self._ends.ended(ended(self.steps)), even_lost=True)

    def _write_the_end(self, ended: Callable[[int], Ended], look: bool) -> None:
        self._collections.over = True
        if not look:  # written again below; a peer that fails of this may have us ended before we get there
            self._folder.ended(ended(self.steps))
        self._watched_steps.leave()
        self._lifetimes.forget()
        if look:
            self._look(self.steps, Occasion.END, collect=self.options.gc_diff == When.ALWAYS)
        self._sites.forget()
        for sentence in what_was_not_heard(self._clock) if not self.steps else ():
            self._folder.note(sentence)
        if self.options.prove and self.steps < (self._schedule.steps or 0):
            self._folder.note(f"no cut was proved: the script ended after {self.steps} of {self._schedule.steps} steps")
        self._ends.ended(ended(self.steps))
