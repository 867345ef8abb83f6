"""What the ranks print comes out as it is, whatever the terminal can show and whoever holds the pipe."""

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


def shown(folder: Path, command: str, encoding: str = "utf-8") -> tuple[str, bytes]:
    """On a terminal of this encoding, and in the log, when a rank runs a shell's command."""
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    stream = Stream(terminal, folder / "log", "[rank 0]: ")
    with passed_on([stream]), open(stream.path, "w") as written:
        subprocess.run(["sh", "-c", command], stdout=written, check=True, timeout=60)
    terminal.seek(0)
    return terminal.read(), (folder / "log").read_bytes()


def test_a_long_line_is_read_once(tmp_path: Path) -> None:
    size, began = 40_000_000, time.process_time()
    text, log = shown(tmp_path, f"head -c {size} /dev/zero | tr '\\0' x")
    assert len(text) == size + len("[rank 0]: \n") and len(log) == size
    assert time.process_time() - began < 5  # seconds; 25 where each part is put together with all before it


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
