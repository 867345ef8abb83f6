"""At the end of the interpreter no thread of leakscope's is inside of torch, and those of the script had their turn."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from typing import Any

import pytest

from leakscope.process import watchdog
from leakscope.process.guard import Guard
from leakscope.process.watchdog import Watchdog


def started(tick: Callable[[], Any]) -> Watchdog:
    made = Watchdog(lambda: False, tick, lambda: None, 1000.0)
    made.start(Guard())
    return made


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_end_waits_for_a_tick_that_is_under_way() -> None:
    moments: list[str] = []

    def tick() -> None:
        moments.append("begins")
        time.sleep(0.2)
        moments.append("over")

    dog = started(tick)
    wait_for(lambda: bool(moments))
    dog.end()
    assert moments[-1] == "over"
    many = len(moments)
    time.sleep(0.3)
    assert len(moments) == many, "it ticks after its end"


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
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
