"""The guard contains internal errors and passes on interrupts and errors of the script."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from leakscope.options import Options
from leakscope.process.guard import Guard
from leakscope.process.patches import Patches
from leakscope.recorder.recorder import Recorder
from leakscope.run.live import Activity
from leakscope.run.model import Ended
from leakscope.run.rows import EndKind


class Owner:
    """Something of the program's."""

    def call(self, number: int) -> int:
        if number < 0:
            raise LookupError("the script's own")
        return number + 1


class Ours:
    """The messages of a guard, and the calls that came to us."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.heard: list[object] = []
        self.guard = Guard(self.messages.append)
        self.patches = Patches(self.guard)

    def fails(self, *about: object) -> None:
        self.heard.append(about)
        raise MemoryError("ours")


@pytest.fixture
def ours() -> Iterator[Ours]:
    ours, own = Ours(), Owner.call
    yield ours
    ours.patches.take_out()
    assert Owner.call is own


@pytest.mark.parametrize("put", [Patches.call_before, Patches.call_after])
def test_after_an_error_of_ours_calls_go_through_unwatched(ours: Ours, put: Callable[..., None]) -> None:
    put(ours.patches, Owner, "call", ours.fails)
    assert [Owner().call(1), Owner().call(2)] == [2, 3] and len(ours.heard) == 1
    with pytest.raises(LookupError):
        Owner().call(-1)
    assert len(ours.messages) == 1 and "MemoryError: ours (in Owner.call)" in ours.messages[0]
    assert ours.guard.lost and ours.guard.why in ours.messages[0]


def test_one_error_is_reported_and_everything_ends(ours: Ours) -> None:
    ours.guard.steps = lambda: 5
    ends: list[str] = []
    ours.guard.at_end += [ours.fails, ends.append]
    first, other = (ours.guard.guarded(name, ours.fails) for name in ("first", "other"))
    first("a")
    other("b")
    ours.guard.call("third", ours.fails)
    assert len(ends) == len(ours.messages) == 1 and "step 5" in ends[0]
    assert ("b",) not in ours.heard


@pytest.mark.process
def test_a_forked_child_is_not_watched(ours: Ours) -> None:
    ours.patches.call_before(Owner, "call", ours.fails)
    child = os.fork()
    if child == 0:
        os._exit(Owner().call(40) + len(ours.heard) + len(ours.messages))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41 and not ours.guard.disabled


class TooSlow(Exception):
    """Raised by the script's own handler."""


@contextmanager
def handled(number: int, handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def too_slow(_: int, __: FrameType | None) -> None:
    raise TooSlow


def test_an_error_of_a_signal_handler_that_runs_in_our_code_is_passed_on(ours: Ours) -> None:
    ours.patches.call_before(Owner, "call", lambda *_: signal.raise_signal(signal.SIGALRM))
    with handled(signal.SIGALRM, partial(too_slow)), pytest.raises(TooSlow):
        Owner().call(1)
    assert not ours.messages and not ours.guard.lost


def test_a_snapshot_passes_on_an_error_of_a_signal_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    recorder = Recorder(Options(folder=tmp_path, by_hand=True, warmup=0, budget=1.0))
    monkeypatch.setattr("leakscope.recorder.snapshots.take_heap_snapshot", interrupted)
    with handled(signal.SIGINT, too_slow), pytest.raises(TooSlow):
        for _ in range(3):
            recorder.boundary()
    assert not recorder.patches.guard.lost
    assert recorder._rank_state.mine.activity == Activity.RUNNING
    recorder.finish(lambda steps: Ended(EndKind.FINISHED, 0, steps), with_snapshot=False)
    assert list(tmp_path.rglob("notes.jsonl")) == []


def test_an_interrupt_in_a_finalizer_is_raised_again(ours: Ours) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    owner = Owner()
    reference = weakref.ref(owner, ours.guard.finalizer_safe("death", interrupted))
    with handled(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        del owner
        for _ in range(500):  # a call of C is not interrupted: the signal is only noted
            time.sleep(0.01)
    assert reference() is None and not ours.messages
