"""Threads of the script go on while it is looked at, and so does the look."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from leakscope.capture.heap import look as heap
from leakscope.capture.process.pause import paused

Command = Callable[..., "subprocess.CompletedProcess[str]"]

STEPS = """
for step in range(9):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
print("done")
"""
MODEL = """
import sys, threading, time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
COMPUTES = """
going, count = True, 0
def spin():
    global count
    while going:
        count += 1
threading.Thread(target=spin, daemon=True).start()
"""


@pytest.fixture(params=[0.005, 1e-6, 1000.0])
def interval(request: pytest.FixtureRequest) -> Iterator[float]:
    found = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield float(request.param)
    sys.setswitchinterval(found)


def test_threads_take_turns_during_a_look_whatever_the_script_has_set(interval: float) -> None:
    with paused():
        assert 0.001 <= sys.getswitchinterval() <= 0.05
    assert sys.getswitchinterval() == pytest.approx(interval)


@pytest.mark.look
def test_a_thread_that_computes_does_not_keep_a_look_from_ending() -> None:
    going = [True]

    def spin() -> None:
        while going and time.monotonic() < began + 30:
            pass

    began = time.monotonic()
    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        kept = torch.ones(321)
        assert 321 * 4 in heap.look(1, "step").heap.bytes.tolist() and kept is not None
        assert time.monotonic() - began < 30
    finally:
        going.clear()
        thread.join()


@pytest.mark.process
@pytest.mark.parametrize("disturbs", [COMPUTES, "time.sleep = lambda seconds: None\n"], ids=["computes", "sleep"])
def test_a_run_ends_beside(disturbs: str, leakscope: Command, script: Callable[[str], Path]) -> None:
    ran = leakscope("run", script(MODEL + disturbs + STEPS), timeout=60)
    assert ran.returncode == 0 and ran.stdout.startswith("done") and "9 steps" in ran.stdout + ran.stderr, ran.stderr


STEPS_IN_A_HANDLER = """
import signal
other = torch.optim.SGD([torch.ones(4, requires_grad=True)], lr=0.01)
other.param_groups[0]["params"][0].grad = torch.ones(4)
idle = [True]
def step(*_):
    if idle:
        idle.clear()
        other.step()
        idle.append(True)
signal.signal(signal.SIGALRM, step)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
"""


@pytest.mark.process
def test_a_signal_handler_may_take_a_step_in_the_middle_of_a_look(
    leakscope: Command, script: Callable[[str], Path]
) -> None:
    end = "signal.setitimer(signal.ITIMER_REAL, 0)\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
    ran = leakscope("run", script(MODEL + STEPS_IN_A_HANDLER + STEPS + end), timeout=60)
    assert ran.returncode == 0 and ran.stdout.startswith("done"), ran.stderr
