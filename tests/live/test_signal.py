"""Is SIGUSR1 heard where nobody else answers it, and only there, with nothing of it left when recording ends?"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakscope.process.patches import Patches
from leakscope.recorder.steps.requests import SignalHeard

US = signal.SIGUSR1


def is_caught() -> bool:
    """Whether the system calls anything in this process for it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) & 1 << (US - 1))


@pytest.fixture(autouse=True)
def signal_stays() -> Iterator[None]:
    assert not is_caught()
    yield
    faulthandler.unregister(US)
    signal.signal(US, signal.SIG_DFL)


def listening(folder: Path) -> tuple[SignalHeard, Patches]:
    patches = Patches()
    return SignalHeard(folder / "stacks", patches), patches


def test_it_is_heard_once_with_the_stack_and_python_sees_no_handler(tmp_path: Path) -> None:
    heard, patches = listening(tmp_path)
    assert not heard.heard()
    os.kill(os.getpid(), US)
    assert heard.heard() and not heard.heard()
    assert "test_it_is_heard_once" in (tmp_path / "stacks").read_text()
    assert signal.getsignal(US) == signal.SIG_DFL
    patches.take_out()
    assert not is_caught()


def test_a_handler_that_the_script_sets_later_counts_and_stays(tmp_path: Path) -> None:
    heard, patches = listening(tmp_path)
    answered: list[int] = []
    assert signal.signal(US, lambda number, _: answered.append(number)) == signal.SIG_DFL
    os.kill(os.getpid(), US)
    assert not heard.heard()
    patches.take_out()
    assert is_caught()
    os.kill(os.getpid(), US)
    assert answered == [US, US]


@pytest.mark.parametrize("first", [True, False], ids=["before", "later"])
def test_faulthandler_is_the_scripts_where_it_takes_it(tmp_path: Path, first: bool) -> None:
    with open(tmp_path / "own", "w") as own:
        if first:
            faulthandler.register(US, own)
        heard, patches = listening(tmp_path)
        if not first:
            faulthandler.register(US, own)
        os.kill(os.getpid(), US)
        assert not heard.heard()
        patches.take_out()
        assert is_caught()
        os.kill(os.getpid(), US)
        assert (tmp_path / "own").read_text().count("Current thread") == 2
        faulthandler.unregister(US)


def test_a_script_that_unregisters_it_ends_as_it_would(tmp_path: Path) -> None:
    _, patches = listening(tmp_path)
    faulthandler.unregister(US)
    assert not is_caught()
    patches.take_out()


@pytest.mark.process
def test_a_forked_child_ends_by_it_as_it_would(tmp_path: Path) -> None:
    heard, patches = listening(tmp_path)
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), US)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -US
    assert not heard.heard()
    patches.take_out()


def test_a_file_that_the_script_has_closed_is_opened_again(tmp_path: Path) -> None:
    heard, patches = listening(tmp_path)
    assert heard._file is not None
    os.close(heard._file.number)
    assert not heard.heard()
    os.kill(os.getpid(), US)
    assert heard.heard()
    patches.take_out()
