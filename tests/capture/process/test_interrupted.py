"""An exception that arrives at any instruction of leakscope's leaves the process as it was."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.global_state import global_state
from support.interrupts import Interrupt, built, interrupted

import leakscope
from leakscope.process import gc_control
from leakscope.process.gc_control import CollectionWatch, deadline, no_automatic_gc, paused
from leakscope.process.guard import Guard
from leakscope.process.patches import Patches
from leakscope.process.torch_compat import past_modes, without_gradients
from leakscope.recorder.accelerator import Counter
from leakscope.recorder.memory_limits import more_room
from leakscope.recorder.snapshots import SnapshotQueue
from leakscope.recorder.steps.peers import RankStateFile
from leakscope.run.live import Activity
from leakscope.shield import Block, contextmanager

pytestmark = pytest.mark.process  # the module that interrupts is compiled


@pytest.fixture(scope="module")
def interrupts(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return built(tmp_path_factory.mktemp("interrupts"))


def in_block(block: Callable[[], Any]) -> Callable[[], None]:
    def call() -> None:
        with block():
            len([])

    return call


def state_of(*more: Callable[[], object]) -> tuple[object, ...]:
    """What each block switches, and what is leakscope's own of it."""
    return (
        global_state(), torch.is_grad_enabled(), torch._C._is_torch_function_enabled(), dict(gc_control._ends),
        set(gc_control._waiting), *(each() for each in more),
    )  # fmt: skip


WATCH = CollectionWatch(lambda: 0)
SMALL = {
    "paused": in_block(paused),
    "no automatic gc": in_block(no_automatic_gc),
    "at most": in_block(lambda: deadline(9.0)),
    "own work": in_block(WATCH.suspended),
    "gc_neutral": WATCH.gc_neutral(lambda: [[] for _ in range(30)]),
    "past modes": in_block(past_modes),
    "without gradients": in_block(without_gradients),
    "more room": in_block(more_room),
    "counter": in_block(Counter().ours),
}


@pytest.mark.parametrize(("name", "collecting"), [*((name, True) for name in SMALL), ("no automatic gc", False)])
def test_a_block_restores_what_it_switches(interrupts: ModuleType, name: str, collecting: bool) -> None:
    call, was = SMALL[name], gc.isenabled()
    call()
    interval = sys.getswitchinterval()
    (gc.enable if collecting else gc.disable)()
    try:
        before = state_of(WATCH.is_within, lambda: len(WATCH._own_blocks))
        came = 0
        for check, out in interrupted(interrupts, call, 400):
            came += out
            assert state_of(WATCH.is_within, lambda: len(WATCH._own_blocks)) == before, f"after check {check}"
        assert came > 1
        assert sys.getswitchinterval() == interval
    finally:
        (gc.enable if was else gc.disable)()


def test_rank_states_and_turns_are_restored(interrupts: ModuleType, tmp_path: Path) -> None:
    states, turns = RankStateFile(tmp_path / "states", 0, 1), SnapshotQueue(tmp_path / "turns", ranks=2, cores=1)

    def call() -> None:
        with turns.turn(), states.taking_snapshot():
            pass

    for check, _ in interrupted(interrupts, call, 400):
        assert states.mine.activity == Activity.RUNNING, f"after check {check}"
        assert states.states() == (states.mine,), "and in the file"
        took = SnapshotQueue(tmp_path / "turns", ranks=2, cores=1)
        with took.turn():  # would wait ten seconds
            pass
    states.close()


def test_patches_leave_nothing_behind(interrupts: ModuleType) -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook

    class Owner:
        def method(self) -> int:
            return 1

    plain, listeners = Owner.method, list[Any]()

    def call() -> None:
        patches = Patches(Guard())
        try:
            patches.call_before(Owner, "method", lambda *_: None)
            patches.hook("hook", register_optimizer_step_post_hook, lambda *_: None)
            patches.listen("listeners", listeners, lambda *_: None)
        finally:
            interrupts.disarm()
            patches.take_out()

    before = len(_global_optimizer_post_hooks)
    for check, _ in interrupted(interrupts, call, 600):
        left = (Owner.method is plain, len(_global_optimizer_post_hooks), listeners)
        assert left == (True, before, []), f"after check {check}"


CHECKS = 4
"""Of the thousands that a call has: the first half one by one, the others spread over all of it."""
NET = torch.nn.Linear(16, 16)


def a_step() -> None:
    NET(torch.randn(4, 16)).sum().backward()
    NET.zero_grad()


def in_watch() -> None:
    with leakscope.watch():
        a_step()


def in_profiler() -> None:
    with leakscope.Profiler(budget=1.0, warmup=0) as profiler, profiler.step():
        a_step()


CALLS = {"watch": in_watch, "Profiler": in_profiler}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_public_api_restores_the_process(interrupts: ModuleType, call: Callable[[], object]) -> None:
    call()
    before = state_of()
    for check, _ in interrupted(interrupts, call, CHECKS):
        assert _settled(before) == before, f"after check {check}"


def _settled(before: tuple[object, ...]) -> tuple[object, ...]:
    """The state once threads that are to end have ended."""
    import time

    for _ in range(50):
        now = state_of()
        if now == before:
            break
        time.sleep(0.02)
    return now


def test_a_block_without_the_native_part_ends_although_interrupted() -> None:
    from leakscope.shield import PureBlock

    done: list[str] = []

    def leave() -> None:
        done.append("out")
        if done.count("out") == 1:
            raise Interrupt

    with pytest.raises(Interrupt), PureBlock(lambda: None, leave):
        pass
    assert done == ["out", "out"]


def test_an_interrupted_exit_is_repeated_and_the_interrupt_raised() -> None:
    tries: list[int] = []

    def leave() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Interrupt

    with pytest.raises(Interrupt) as raised, Block(lambda: None, leave):
        raise ValueError
    assert len(tries) == 3 and isinstance(raised.value.__context__, ValueError)


@contextmanager
def recording(done: list[object]) -> Iterator[str]:
    try:
        yield "value"
    except LookupError as error:
        done.append(error)
    finally:
        done.append("end")


def test_our_contextmanager_behaves_like_contextlibs() -> None:
    done: list[object] = []
    with recording(done) as value:
        assert value == "value"
    assert done == ["end"]
    error = LookupError()
    with recording(done):
        raise error  # the generator swallows it
    assert done == ["end", error, "end"]
    other = ValueError()
    with pytest.raises(ValueError) as raised, recording(done):
        raise other
    assert raised.value is other and done[3:] == ["end"]
    for stop in (StopIteration(), StopIteration(1)):
        with pytest.raises(StopIteration) as stopped, recording(done):
            raise stop
        assert stopped.value is stop
