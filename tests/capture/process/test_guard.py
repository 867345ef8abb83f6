"""The guard contains internal errors and passes on interrupts and errors of the script."""

from __future__ import annotations

import os
import signal
import sys
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


class Told:
    """What a guard has said, and the calls that came to us."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.heard: list[object] = []
        self.guard = Guard(self.said.append)
        self.patches = Patches(self.guard)

    def fails(self, *about: object) -> None:
        self.heard.append(about)
        raise MemoryError("ours")


@pytest.fixture
def told() -> Iterator[Told]:
    told, own = Told(), Owner.call
    yield told
    told.patches.take_out()
    assert Owner.call is own


@pytest.mark.parametrize("put", [Patches.call_before, Patches.call_after])
def test_the_call_is_made_once_and_we_are_deaf_from_then_on(told: Told, put: Callable[..., None]) -> None:
    put(told.patches, Owner, "call", told.fails)
    assert [Owner().call(1), Owner().call(2)] == [2, 3] and len(told.heard) == 1
    with pytest.raises(LookupError):
        Owner().call(-1)
    assert len(told.said) == 1 and "MemoryError: ours (in Owner.call)" in told.said[0]
    assert told.guard.lost and told.guard.why in told.said[0]


def test_one_fault_is_told_and_everything_is_deaf(told: Told) -> None:
    told.guard.steps = lambda: 5
    ends: list[str] = []
    told.guard.at_end += [told.fails, ends.append]
    first, other = (told.guard.guarded(name, told.fails) for name in ("first", "other"))
    first("a")
    other("b")
    told.guard.call("third", told.fails)
    assert len(ends) == len(told.said) == 1 and "step 5" in ends[0]
    assert ("b",) not in told.heard


@pytest.mark.process
def test_a_forked_child_is_deaf_and_says_nothing(told: Told) -> None:
    told.patches.call_before(Owner, "call", told.fails)
    child = os.fork()
    if child == 0:
        os._exit(Owner().call(40) + len(told.heard) + len(told.said))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41 and not told.guard.disabled


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


@pytest.mark.parametrize("handler", [too_slow, partial(too_slow)], ids=["function", "partial"])
def test_what_a_signal_handler_of_the_scripts_raises_in_us_is_the_scripts(
    told: Told, handler: Callable[..., object]
) -> None:
    told.patches.call_before(Owner, "call", lambda *_: signal.raise_signal(signal.SIGALRM))
    with handled(signal.SIGALRM, handler), pytest.raises(TooSlow):
        Owner().call(1)
    assert not told.said and not told.guard.lost


@pytest.mark.look
def test_a_look_passes_on_what_a_signal_handler_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    recorder = Recorder(Options(folder=tmp_path, by_hand=True, warmup=0, budget=1.0))
    monkeypatch.setattr("leakscope.recorder.snapshots.look_at_heap", interrupted)
    with handled(signal.SIGINT, too_slow), pytest.raises(TooSlow):
        for _ in range(3):
            recorder.boundary()
    assert not recorder.patches.guard.lost
    assert recorder._rank_state.mine.activity == Activity.RUNNING
    recorder.finish(lambda steps: Ended(EndKind.FINISHED, 0, steps), look=False)
    assert list(tmp_path.rglob("notes.jsonl")) == []


def test_an_interrupt_that_python_would_drop_comes_again(told: Told) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    owner = Owner()
    reference = weakref.ref(owner, told.guard.finalizer_safe("death", interrupted))
    with handled(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        del owner
        time.sleep(5)
    assert reference() is None and not told.said


def test_an_import_ends_as_it_would_without_us(told: Told) -> None:
    sys.modules.pop("colorsys", None)
    told.patches.after_import("colorsys", lambda: told.fails("imported"))
    import colorsys

    assert told.heard == [("imported",)] and colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0) and len(told.said) == 1
