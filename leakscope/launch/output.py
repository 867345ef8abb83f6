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
"""Bytes per read: the capacity of a pipe on Linux."""
_MAX_LINE_BYTES = 1 << 26
"""Maximum bytes of a line that is buffered; a longer one is shown in parts. Heuristic."""
_POLL_S = 0.05
"""Seconds between two checks whether all ranks have ended."""


@dataclass(eq=False)
class Stream:
    """One stream of one rank."""

    terminal: TextIO
    log: Path
    prefix: str = ""
    """Prefix of each line on the terminal: `[rank 0]: `."""
    why: str = ""
    """Why the log cannot be written; "" if it can."""
    _line: bytearray = field(default_factory=bytearray)
    _returned: bool = False
    r"""Whether the last read may have ended within `\r
`."""
    _log: int = -1
    _read: int = -1
    _written: int = -1
    _is_shown: bool = field(default=True)

    def open(self) -> None:
        """Create the pipe and, if possible, the log."""
        self._read, self._written = os.pipe()
        os.set_blocking(self._read, False)
        try:
            self._log = open_private(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            self.why = error.strerror or str(error)

    @property
    def path(self) -> str:
        """The path that the launcher opens for the rank's output."""
        return f"/proc/{os.getpid()}/fd/{self._written}"

    @property
    def reading(self) -> int:
        """The descriptor with the rank's output."""
        return self._read

    def take(self) -> int:
        """Pass on what is available; return the number of bytes."""
        try:
            data = os.read(self._read, _READ)
        except BlockingIOError:
            return 0
        if data:
            self._keep(data)
            self._split(data)
        return len(data)

    def close(self) -> None:
        """Close the stream; processes that outlive the rank write to the log."""
        left = fcntl(self._read, F_GETPIPE_SZ)  # the rest cannot come from the rank, and other writers may never end
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
        if len(self._line) > _MAX_LINE_BYTES:
            self._show([self._line])
            self._line = bytearray()

    def _show(self, lines: Sequence[bytes | bytearray]) -> None:
        if not self._is_shown:
            return
        try:
            # the ranks use the terminal's encoding, since they have the same environment; other bytes stay visible
            encoding = getattr(self.terminal, "encoding", None) or "utf-8"
            texts = (line.decode(encoding, "backslashreplace") for line in lines)
            self.terminal.write("".join(f"{self.prefix}{text}\n" for text in texts))
            self.terminal.flush()
        except Exception:  # noqa: BLE001 - the terminal was closed, or whatever: the ranks would wait for us for ever
            self._is_shown = False

    def _follow_those_left(self) -> None:
        poll = selectors.PollSelector()
        poll.register(self._read, selectors.EVENT_READ)
        if poll.select(0):  # end of file: no writer is left
            return
        os.set_blocking(self._read, True)
        sink = self._log if self._log >= 0 and not self.why else subprocess.DEVNULL
        subprocess.Popen(["cat"], stdin=self._read, stdout=sink, stderr=subprocess.DEVNULL, start_new_session=True)


@contextmanager
def passed_on(streams: Collection[Stream]) -> Iterator[None]:
    """Pass on the ranks' output during the block, and the rest afterwards."""
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
