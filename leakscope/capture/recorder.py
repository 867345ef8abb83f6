"""Records one rank: counters at every step, looks at some of them, and how it all ended."""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leakscope.capture import board as places
from leakscope.capture.board import Board
from leakscope.capture.collecting import CollectionWatch
from leakscope.capture.device import Counter
from leakscope.capture.garbage import Watched, real_diff
from leakscope.capture.hang import STACKS, HangClock, stack_of_thread, write_stacks_on_signals
from leakscope.capture.heap import Live
from leakscope.capture.heap import inspect as inspect_heap
from leakscope.capture.heap import look as look_at_heap
from leakscope.capture.installed import Installed
from leakscope.capture.lifetimes import Watch as LifetimeWatch
from leakscope.capture.makers import Makers
from leakscope.capture.out_of_memory import HostLimit
from leakscope.capture.out_of_memory import failure as allocation_failure
from leakscope.capture.processes import OwnProcesses
from leakscope.capture.sources import users_sources
from leakscope.capture.steps import Schedule, StepClock
from leakscope.capture.stopping import Stop, Watchdog, leave_now
from leakscope.capture.wire import Wire
from leakscope.record import Ended, RankFolder, Step, read_run, write_json

HUNG = 124
"""Exit status of a rank that `--hang-timeout` has ended, as of `timeout`."""
_PATIENCE = 2.0
"""Seconds to wait at the last step for a rank that may own an optimizer and has not stepped yet."""


@dataclass(frozen=True)
class Options:
    """What is asked of a recorder."""

    folder: Path
    """The run's folder."""
    rank: int = 0
    world: int = 1
    steps: int | None = None
    """End the script after this many steps; None lets it run."""
    warmup: int = 2
    budget: float = 0.02
    gc_diff: str = "auto"
    """auto: after the last look of a run that is ended after `steps`; always: also after the script; never."""
    prove: bool = False
    """Cut each blamed reference in a forked copy after the last look of a run with `steps`."""
    lifetimes: bool = True
    """Watch two steps after warm-up under a dispatch mode: what is never used again at the peak."""
    grace: float = 10.0
    """Seconds a rank has to leave once a run with `steps` is over."""
    hang_timeout: float | None = None
    """Seconds without anything on the wire after which a rank of several is ended as hung; None waits for ever."""
    by_hand: bool = False
    """Steps are marked with `boundary()`; no optimizer is listened to and the script is never stopped."""


class Recorder:
    """Attached once torch is there; everything it puts into the process is in `installed` and taken out at the end."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.installed = Installed()
        self.steps = 0
        self.stopped = False
        self.lost = False
        """Nothing could be written any more."""
        self._folder = RankFolder(options.folder, options.rank)
        self._board = Board(options.folder / ".board", options.rank, options.world)
        self._counter = Counter()
        self._collections = CollectionWatch(lambda: self._counter.read().bytes)
        self._clock = StepClock()
        self._schedule = Schedule(options.warmup, options.steps, options.budget)
        self._makers = Makers()
        self._lifetimes = LifetimeWatch(options.warmup, self._at_peak)
        self._limit = HostLimit()
        self._wire: Wire | None = None
        self._hang: HangClock | None = None
        self._watchdog = Watchdog(self.is_over, self._from_aside, self._leave, options.grace)
        self._looking = _thread.allocate_lock()
        self._pid = os.getpid()
        self._home = _thread.get_ident()
        self._began = self._attached = time.perf_counter()
        self._peak: int | None = None
        self._peers_seen = 0
        self._waiting_since: float | None = None

    # what is put into the process

    def attach(self) -> None:
        """Start listening."""
        options = self.options
        self.installed.add("gc.callbacks", self._collections.install())
        if not options.by_hand:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self.installed.add("optimizer step hook", register_optimizer_step_post_hook(self._after_optimizer).remove)
            OwnProcesses(self._folder.note).install(self.installed)
            if options.world > 1 and torch.distributed.is_available():
                self._wire = Wire(self._folder, self.installed)
                self._listen_to_the_wire()
                write_stacks_on_signals(self._folder.path / STACKS, self.installed)
                if options.hang_timeout is not None:
                    self._hang = HangClock(options.hang_timeout, self._wire.last_event)
            if options.world > 1 or options.steps is not None:
                self._watchdog.start()
                self.installed.add("watchdog thread", self._watchdog.end)
        if options.lifetimes:
            self._lifetimes.install(self.installed, wire=self._wire is not None)
        self._began = self._attached = time.perf_counter()

    def _listen_to_the_wire(self) -> None:
        # the classes are wrapped, not torch.distributed.isend: P2POp refuses any other function ("Invalid op")
        from torch._C._distributed_c10d import ProcessGroup, Work

        for owner, name in ((ProcessGroup, "send"), (ProcessGroup, "recv"), (Work, "wait")):
            self.installed.wrap(owner, name, self._before_the_wire)

    def _is_elsewhere(self) -> bool:
        return os.getpid() != self._pid

    # steps

    def _after_optimizer(self, optimizer: object, args: object, kwargs: object) -> None:
        if self._is_elsewhere() or self.lost or not self._clock.ends_with(optimizer):
            return
        del optimizer, args, kwargs
        self._home = _thread.get_ident()
        self.boundary()

    def boundary(self) -> None:
        """The end of a step: read the counters, look if one is due, and stop if the run is over.

        Raises Stop where a run with `steps` is over.
        """
        self._collections.deaf = True
        try:
            if self.options.steps is None or self.steps < self.options.steps:
                self._step()
        except Exception as error:  # noqa: BLE001 - told as a note where it can be: the script must not fail of our recording
            with suppress(OSError):
                self._folder.note(f"recording ended at step {self.steps}: {type(error).__name__}: {error}")
            # The disk is full or the folder gone: the script goes on, unrecorded. What is installed stays and does
            # nothing until the end: torch is going through its hooks right now and would trip over one taken out.
            self.lost = True
            self._makers.leave()
            self._lifetimes.leave()
            return
        finally:
            self._collections.deaf = False
        try:
            if self.is_over():
                self._stop()
        finally:
            self._began = time.perf_counter()

    def _step(self) -> None:
        ended = time.perf_counter()
        counted = self._counter.read()
        rose = counted.peak is not None and counted.peak != self._peak
        self._peak = counted.peak
        self.steps += 1
        self._folder.step(
            Step(self.steps, ended - self._began, counted.bytes, counted.peak if rose else None, self._collections.taken())
        )
        if self._wire is not None:
            self._wire.step_ended(self.steps)
        self._watch_makers()
        self._watch_lifetimes()
        if self._limit.reached():
            self._look(self.steps, "memory")
        if self.steps == self.options.steps:
            self._finish_looking()
        else:
            if self._schedule.due(self.steps, ended - self._attached):
                self._look(self.steps, "step")
            self._board.say(steps=self.steps)

    def _watch_makers(self) -> None:
        if self._makers.watching:
            self._makers.leave()
        elif self.steps == self.options.warmup - 1:
            reason = self._makers.enter()
            if reason:
                self._folder.note(reason)

    def _watch_lifetimes(self) -> None:
        told = self._lifetimes.boundary(self.steps) if self.options.lifetimes else None
        if told is not None:
            if told.look is not None:
                self._folder.look(told.look)
            for row in told.rows:
                self._folder.append("lifetimes", row)

    @contextmanager
    def _at_peak(self, step: int, occasion: str) -> Iterator[Live]:
        """The heap in the middle of a step, for the lifetimes."""
        began = time.perf_counter()
        with self._looking, inspect_heap(
            step,
            occasion,
            counted_bytes=self._counter.read().bytes,
            hidden=self._own_objects(),
            made_at=self._makers.made_at,
            wire=() if self._wire is None else self._wire.holds(),
            crossed={} if self._wire is None else self._wire.crossed(),
        ) as live:
            yield live
        self._watchdog.extend(time.perf_counter() - began)

    def _finish_looking(self) -> None:
        self._look(self.steps, "last", collect=self.options.gc_diff != "never")
        self._board.say(steps=self.steps)
        self._wait_for_peers()

    # looks

    def _look(self, step: int, occasion: str, collect: bool = False) -> None:
        """One look, and the real gc diff after it where asked; what fails is a note, the script goes on."""
        with self._looking:
            self._board.say(state=places.LOOKING)
            began = time.perf_counter()
            try:
                self._look_and_write(step, occasion, collect)
            except Exception as error:  # noqa: BLE001 - told as a note: the user's script must not fail of our looking
                self._folder.note(f"the look at step {step} failed: {type(error).__name__}: {error}")
            seconds = time.perf_counter() - began
            self._schedule.taken(step, seconds)
            self._watchdog.extend(seconds)
            self._board.say(state=places.RUNNING)

    def _look_and_write(self, step: int, occasion: str, collect: bool) -> None:
        watched: Watched = []
        look = look_at_heap(
            step,
            occasion,
            counted_bytes=self._counter.read().bytes,
            hidden=self._own_objects(),
            made_at=self._makers.made_at,
            wire=() if self._wire is None else self._wire.holds(),
            crossed={} if self._wire is None else self._wire.crossed(),
            watched=watched if collect else None,
        )
        self._folder.look(look)
        if occasion == "last" and self.options.prove:
            self._prove(step)
        if collect:
            predicted = int(look.heap.bytes[look.heap.freed > 0].sum())
            del look
            self._folder.gc_diff(real_diff(predicted, watched))

    def _prove(self, step: int) -> None:
        from leakscope.capture.prove import prove

        run = read_run(self.options.folder)
        mine = next(rank for rank in run.ranks if rank.number == self.options.rank)
        wire = () if self._wire is None else self._wire.holds()
        self._folder.proved(prove(run, mine, step, self._own_objects(), wire))

    def _own_objects(self) -> tuple[object, ...]:
        wire = () if self._wire is None else self._wire.own_objects()
        return (self, *self.__dict__.values(), self.__dict__, *wire)

    # peers

    def is_over(self) -> bool:
        if self.stopped:
            return True
        if self.options.steps is None or self.options.by_hand:
            return False
        return places.all_there(self._board.slots(), self.options.steps)

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._board.say(state=places.STOPPING)
            # written now, for a rank that never gets further than this; the script's own end writes it again
            with suppress(OSError):
                self._folder.ended(Ended("stopped", 0, self.steps))
        raise Stop

    def _wait_for_peers(self) -> None:
        """Hold this rank at its last step until its peers have reached theirs, but never for long: they may need it to go on."""
        deadline = time.monotonic() + _PATIENCE
        while not self._peers_arrived() and (time.monotonic() < deadline or self._somebody_looks()):
            time.sleep(0.005)

    def _peers_arrived(self) -> bool:
        steps = self.options.steps or 0
        slots = self._board.slots()
        return all(slot.steps >= steps or slot.state >= places.STOPPING for slot in slots)

    def _somebody_looks(self) -> bool:
        return any(slot.state == places.LOOKING for slot in self._board.slots())

    def _before_the_wire(self, *_: Any, **__: Any) -> None:
        if self._is_elsewhere() or self.lost or _thread.get_ident() != self._home or self._looking.locked():
            return
        if self.steps == 0:
            step = self._peers_step_to_look_at()
            if step:
                self._look_as_peer(step)
        if self.is_over():
            self._stop()

    def _peers_step_to_look_at(self) -> int:
        """The peers' step that this rank, which has no steps of its own, has not been looked at for; 0 for none."""
        step = max(slot.steps for slot in self._board.slots())
        if step <= self._peers_seen:
            return 0
        elapsed = time.perf_counter() - self._attached
        passed = range(self._peers_seen + 1, step + 1)
        if step == self.options.steps or any(self._schedule.due(number, elapsed) for number in passed):
            return step
        self._peers_seen = step
        return 0

    def _look_as_peer(self, step: int) -> None:
        self._peers_seen, self._waiting_since = step, None
        if self._wire is not None:
            self._wire.step_ended(step)
        self._collections.deaf = True
        try:
            self._look(step, "peer")
        finally:
            self._collections.deaf = False

    def _from_aside(self) -> None:
        """Called by the watchdog's thread: look at a rank without steps that has not come by itself, as one busy with RPC."""
        if self._wire is not None:
            self._wire.beat()
        if self._hang is not None and self._hang.is_over(self._looking.locked() or self._somebody_looks()):
            self._leave_hung()
        if self.steps or self._looking.locked():
            return
        step = self._peers_step_to_look_at()
        if not step:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._waiting_since > 0.5:
            self._look_as_peer(step)

    def _leave_hung(self) -> None:
        last = self._wire.last_words() if self._wire is not None else ""
        why = f"hung: nothing happened on the wire for {self.options.hang_timeout:g} s; last {last or 'nothing at all'}"
        self._folder.ended(Ended("raised", HUNG, self.steps, why, stack_of_thread(self._home)))
        self._board.say(state=places.ENDED, ended=time.time())
        leave_now(HUNG)

    def _leave(self) -> None:
        self._looking.acquire()
        try:
            if not self.stopped:
                self._folder.ended(Ended("stopped", 0, self.steps))
            write_json(self._folder.path / "about.json", self._about())
            self._board.say(state=places.ENDED, ended=time.time())
        finally:
            leave_now(0)

    # the end

    def failed(self, error: BaseException | None) -> None:
        """The script's main code raised: an allocation that failed is looked at while its traceback's frames are there."""
        found = None if self._is_elsewhere() or self.lost else allocation_failure(error)
        if found is not None:
            self._collections.deaf = True
            self._folder.append("out_of_memory", {"step": self.steps, **found})
            self._look(self.steps, "memory")

    def finish(self, ended: Callable[[int], Ended], look: bool) -> None:
        """Take a last look if asked to, take everything out, and write how it ended; never raises what a look raises."""
        if self._is_elsewhere():
            return
        try:
            if not self.lost:
                self._write_the_end(ended, look)
        except OSError:  # the disk is full or the folder gone; the script's own end is what counts
            self.lost = True
        finally:
            self.installed.take_out()
            self._folder.close()
            self._board.close()

    def _write_the_end(self, ended: Callable[[int], Ended], look: bool) -> None:
        self._collections.deaf = True
        if not look:  # written again below; a peer that fails of this may have us ended before we get there
            self._folder.ended(ended(self.steps))
        self._makers.leave()
        self._lifetimes.leave()
        self._lifetimes.forget()
        if look:
            self._look(self.steps, "end", collect=self.options.gc_diff == "always")
        self._makers.forget()
        write_json(self._folder.path / "about.json", self._about())
        self._folder.ended(ended(self.steps))
        self._board.say(state=places.ENDED, ended=time.time())

    def _about(self) -> dict[str, Any]:
        return {
            "device": self._counter.device,
            "counted_by": self._counter.source,
            "torch": str(torch.__version__),
            "sources": users_sources(),
        }
