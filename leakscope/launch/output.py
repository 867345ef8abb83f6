"""Output of the ranks: to the terminal with the rank before each line, and into logs."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import F_GETPIPE_SZ, fcntl
from pathlib import Path
from typing import TextIO

from leakscope.run.descriptors import open_private

_READ = 1 << 16
"""Bytes read at a time: what a pipe holds on Linux."""
_LONGEST = 1 << 26
"""Bytes of a line, chosen, that are waited for: a longer one is shown in parts."""
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
    _line: bytearray = field(default_factory=bytearray)
    _returned: bool = False
    """What was read ended in the middle of `\\r\\n`, perhaps."""
    _log: int = -1
    _read: int = -1
    _written: int = -1
    _is_shown: bool = field(default=True)

    def open(self) -> None:
        """Make the pipe, and the log where there can be one."""
        self._read, self._written = os.pipe()
        os.set_blocking(self._read, False)
        try:
            self._log = open_private(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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

    def take(self) -> int:
        """Pass on what is there now; gives how many bytes that was."""
        try:
            data = os.read(self._read, _READ)
        except BlockingIOError:
            return 0
        if data:
            self._keep(data)
            self._split(data)
        return len(data)

    def close(self) -> None:
        """Nothing more comes but from processes that outlive the rank: what they print goes into the log."""
        left = fcntl(self._read, F_GETPIPE_SZ)  # no more of it can be the rank's, and others may never come to an end
        while left > 0 and (taken := self.take()):
            left -= taken
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

    def _split(self, data: bytes) -> None:
        if self._returned and data.startswith(b"\n"):
            data = data[1:]
        self._returned = data.endswith(b"\r")
        *lines, rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if lines:
            lines[0], self._line = bytes(self._line + lines[0]), bytearray()
            self._show(lines)
        self._line += rest
        if len(self._line) > _LONGEST:
            self._show([self._line])
            self._line = bytearray()

    def _show(self, lines: Sequence[bytes | bytearray]) -> None:
        if not self._is_shown:
            return
        try:
            # the ranks write in the terminal's encoding, having the same environment; what is none can be seen as such
            encoding = getattr(self.terminal, "encoding", None) or "utf-8"
            texts = (line.decode(encoding, "backslashreplace") for line in lines)
            self.terminal.write("".join(f"{self.prefix}{text}\n" for text in texts))
            self.terminal.flush()
        except Exception:  # noqa: BLE001 - the terminal was closed, or whatever: the ranks would wait for us for ever
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
