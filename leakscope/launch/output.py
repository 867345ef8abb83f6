"""What do the ranks print? It comes through pipes: to the terminal with the rank before each line, and into logs.

torch's launcher lets the ranks write into files that it shows, so that a full disk makes the script's `print` raise.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

_READ = 1 << 16
"""Bytes read at a time: what a pipe holds on Linux."""
_POLL_S = 0.05
"""Seconds between two questions whether all ranks have ended."""


@dataclass(eq=False)
class Stream:
    """One stream of one rank."""

    terminal: TextIO
    log: Path
    prefix: str = ""
    """Ahead of each line on the terminal: `[rank 0]: `."""
    why: str = ""
    """What keeps the log from being written; "" where nothing does."""
    _line: bytes = b""
    _log: int = -1
    _read: int = -1
    _written: int = -1
    _is_shown: bool = field(default=True)

    def open(self) -> None:
        """Make the pipe, and the log where there can be one."""
        self._read, self._written = os.pipe()
        os.set_blocking(self._read, False)
        try:
            self._log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self.why = error.strerror or str(error)

    @property
    def path(self) -> str:
        """What the launcher opens for the rank to write to."""
        return f"/proc/{os.getpid()}/fd/{self._written}"

    @property
    def reading(self) -> int:
        """The descriptor that has what the rank has written."""
        return self._read

    def take(self) -> bool:
        """Pass on what is there now; False where nothing was."""
        try:
            data = os.read(self._read, _READ)
        except BlockingIOError:
            return False
        if data:
            self._keep(data)
            *lines, self._line = (self._line + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            self._show(lines)
        return bool(data)

    def close(self) -> None:
        """Nothing more comes but from processes that outlive the rank: what they print goes into the log."""
        while self.take():
            pass
        if self._line:
            self._show([self._line])
        os.close(self._written)
        with suppress(OSError):
            self._follow_those_left()
        os.close(self._read)
        if self._log >= 0:
            os.close(self._log)

    def _keep(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left and not self.why:
                left = left[os.write(self._log, left) :]
        except OSError as error:
            self.why = error.strerror or str(error)

    def _show(self, lines: list[bytes]) -> None:
        if lines and self._is_shown:
            try:
                self.terminal.write("".join(f"{self.prefix}{line.decode(errors='replace')}\n" for line in lines))
                self.terminal.flush()
            except (OSError, ValueError):  # the terminal was closed; the rank is not to notice
                self._is_shown = False

    def _follow_those_left(self) -> None:
        poll = selectors.PollSelector()
        poll.register(self._read, selectors.EVENT_READ)
        if poll.select(0):  # the end of the file: nobody has it open
            return
        os.set_blocking(self._read, True)
        sink = self._log if self._log >= 0 and not self.why else subprocess.DEVNULL
        subprocess.Popen(["cat"], stdin=self._read, stdout=sink, stderr=subprocess.DEVNULL, start_new_session=True)


@contextmanager
def passed_on(streams: Collection[Stream]) -> Iterator[None]:
    """Pass on what the ranks write while the block runs, and what is left of it afterwards."""
    over = threading.Event()
    ready = selectors.DefaultSelector()
    for stream in streams:
        stream.open()
        ready.register(stream.reading, selectors.EVENT_READ, stream)

    def follow() -> None:
        while not over.is_set():
            for key, _ in ready.select(_POLL_S):
                key.data.take()

    thread = threading.Thread(target=follow, name="output of the ranks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        ready.close()
        for stream in streams:
            stream.close()
