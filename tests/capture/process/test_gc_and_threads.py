"""Automatic gc, thread switching and the watchdog: the program's own state and timing are preserved."""

from __future__ import annotations

import _thread
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakscope.process import watchdog
from leakscope.process.gc_control import CollectionWatch, SnapshotTimeout, check_deadline, deadline, paused
from leakscope.process.guard import Guard
from leakscope.process.patches import Patches
from leakscope.process.watchdog import Watchdog


@pytest.mark.parametrize("made", [0, 50, 3000])
def test_the_count_of_young_objects_is_restored(made: int) -> None:
    watch, kept = CollectionWatch(lambda: None), [[] for _ in range(500)]  # type: ignore[var-annotated]
    gc.collect()
    kept += [[] for _ in range(600)]
    before = gc.get_count()
    with watch.suspended():
        kept += [[] for _ in range(made)]
        if not made:
            del kept[-400:]
    after = gc.get_count()
    assert after[0] == pytest.approx(before[0], abs=20) and after[1:] == before[1:]


def test_a_collection_of_the_program_resets_the_count() -> None:
    watch, patches = CollectionWatch(lambda: None), Patches()
    watch.install(patches)
    try:
        with watch.suspended():
            kept = [[] for _ in range(3000)]  # type: ignore[var-annotated]
        gc.collect(0)
        assert gc.get_count()[0] < 100, "what is made while collecting begins is not counted"
        with watch.suspended():
            kept += [[] for _ in range(3500)]
        assert gc.get_count()[0] < 100
    finally:
        patches.take_out()


@pytest.mark.parametrize("interval", [1e-6, 1000.0])
def test_threads_take_turns_during_a_snapshot(interval: float) -> None:
    found = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        with paused():
            assert 0.001 <= sys.getswitchinterval() <= 0.05
        assert sys.getswitchinterval() == pytest.approx(interval)
    finally:
        sys.setswitchinterval(found)


SCRIPT = """
import threading, time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
time.sleep = lambda seconds: None
for step in range(9):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
print("done")
"""


@pytest.mark.process
def test_a_run_ends_beside_a_thread_that_computes_and_without_sleep(
    leakscope: Callable[..., subprocess.CompletedProcess[str]], script: Callable[[str], Path]
) -> None:
    ran = leakscope("run", script(SCRIPT), timeout=240)
    assert ran.returncode == 0 and ran.stdout.startswith("done") and "9 steps" in ran.stdout + ran.stderr, ran.stderr


def test_a_deadline_applies_to_its_own_block() -> None:
    with deadline(60.0):
        with pytest.raises(SnapshotTimeout), deadline(-1.0):
            check_deadline()
        check_deadline()
    check_deadline()


def started(tick: Callable[[], Any]) -> Watchdog:
    made = Watchdog(lambda: False, tick, lambda: None, 1000.0)
    made.start(Guard())
    return made


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_end_waits_for_a_running_tick() -> None:
    moments: list[str] = []

    def tick() -> None:
        moments.append("begins")
        time.sleep(0.2)
        moments.append("over")

    dog = started(tick)
    wait_for(lambda: bool(moments))
    dog.end()
    assert moments[-1] == "over"


def test_the_end_waits_no_longer_than_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_LAST_TICK_S", 0.05)
    began, over = _thread.allocate_lock(), _thread.allocate_lock()
    began.acquire(), over.acquire()

    def tick() -> None:
        began.release()
        over.acquire()

    dog = started(tick)
    began.acquire()
    before = time.monotonic()
    dog.end()
    assert time.monotonic() - before < 10
    over.release()
