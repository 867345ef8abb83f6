"""The output of ranks is passed on whoever holds the pipe and whether or not it can be logged."""

from __future__ import annotations

import io
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from leakscope.launch.output import Stream, passed_on

pytestmark = pytest.mark.process


def test_a_process_that_prints_for_ever_and_outlives_its_rank(tmp_path: Path) -> None:
    stream = Stream(io.StringIO(), tmp_path / "log")
    stream.open()
    with open(stream.path, "wb") as written:
        flood = subprocess.Popen(["cat", "/dev/zero"], stdout=written)
    try:
        closing = threading.Thread(target=stream.close, daemon=True)
        time.sleep(0.2)  # the pipe is full, and so it is again after each part that is taken
        slow(stream)
        closing.start()
        closing.join(10)
        assert not closing.is_alive(), "the launcher waits for it"
    finally:
        flood.kill()
        flood.wait()


def slow(stream: Stream) -> None:
    """Let its reader be slower than who writes."""
    taken = stream.take

    def take() -> int:
        time.sleep(0.02)
        return taken()

    stream.take = take  # type: ignore[method-assign]


def print_into(stream: Stream, data: bytes) -> None:
    with passed_on([stream]):
        file = os.open(stream.path, os.O_WRONLY)
        os.write(file, data)
        os.close(file)


@pytest.mark.parametrize("log", ["/dev/full", "missing/log"])
def test_a_log_that_cannot_be_written_costs_itself(tmp_path: Path, log: str) -> None:
    terminal = io.StringIO()
    stream = Stream(terminal, tmp_path / log)
    print_into(stream, b"x\n" * 40_000)
    assert terminal.getvalue() == "x\n" * 40_000
    assert stream.why in ("No space left on device", "No such file or directory")
