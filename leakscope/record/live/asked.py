"""What is asked of a run that goes on? A file in its folder has a byte for each time that a look was asked for."""

from __future__ import annotations

from leakscope.originals import Path, os
from leakscope.record.descriptors import open_private
from leakscope.record.folder import ASKED

_BY_COMMAND, _BY_SIGNAL = b"c", b"s"
"""The bytes: who asked by a signal waits for nothing, and leakscope's own process has the answer judged."""


def ask(folder: Path, by_signal: bool = False) -> int:
    """Ask all ranks of the run for a look; gives the number of the request, 1 for the first. Raises OSError."""
    file = open_private(folder / ASKED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, _BY_SIGNAL if by_signal else _BY_COMMAND)
        return os.lseek(file, 0, os.SEEK_CUR)  # right after the byte that was added here, whoever else adds some
    finally:
        os.close(file)


def last_by_signal(file: Path) -> int:
    """Number of the last request that came by a signal; 0 where none did."""
    try:
        return file.read_bytes().rfind(_BY_SIGNAL) + 1
    except OSError:
        return 0


def times_asked(file: Path) -> int:
    """How often a look was asked for so far."""
    try:
        return os.stat(file).st_size
    except OSError:
        return 0
