"""Private files, written whole or line by line, that never write into a descriptor of the script's."""

from __future__ import annotations

import errno
import stat
from contextlib import suppress

from leakscope.originals import Path, fcntl, open_file, os

_STDERR = 2
OWNERS = 0o600
"""Permissions of every file in a run's folder: its owner's alone."""

UNFINISHED = ".*.[0-9]*"
"""Names of files that are being written, as a pattern: with a dot ahead, and with the number of the process."""


def open_private(path: str | Path, flags: int) -> int:
    """The number of a file that only its owner may read and write, whatever the umask. Raises OSError.

    To be used for every file that is written into a run's folder, also as the `opener` of `open`.
    """
    number = os.open(path, flags | os.O_CLOEXEC, OWNERS)
    if flags & os.O_CREAT:
        there = os.fstat(number)
        if stat.S_ISREG(there.st_mode) and stat.S_IMODE(there.st_mode) != OWNERS:
            with suppress(OSError):  # another user's file, or a file system without modes
                os.fchmod(number, OWNERS)
    return number


class Descriptor:
    """One that is asked for what it is before it is used: after `os.closerange` its number may be the script's."""

    def __init__(self, path: Path, flags: int) -> None:
        """Raises OSError where the path cannot be opened."""
        self.number = _above_streams(open_private(path, flags))
        """To be used right after `status`."""
        there = os.fstat(self.number)
        self._device, self._inode = there.st_dev, there.st_ino

    def status(self) -> os.stat_result | None:
        """What the system says of the file; None where the descriptor is ours no more."""
        try:
            there = os.fstat(self.number)
        except OSError:
            return None
        return there if there.st_ino == self._inode and there.st_dev == self._device else None

    def close(self) -> None:
        """Close the file, where it is still ours; what the system says of it is of no use to anybody."""
        if self.status() is not None:
            with suppress(OSError):
                os.close(self.number)


def _above_streams(number: int) -> int:
    """The same file under a number of no stream: C code writes its warnings to 2, whatever has been opened there."""
    if number > _STDERR:
        return number
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    finally:
        os.close(number)


class GrowingFile:
    """A file that whole lines are added to; a line that could not be written whole is taken back."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the path cannot be opened."""
        self._file = Descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, line: bytes) -> None:
        """Add a line. Raises OSError where it cannot be written, or the script has closed or deleted the file."""
        there = self._file.status()
        if there is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not there.st_nlink:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            _write_all(self._file.number, line)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file.number, there.st_size)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_whole(path: Path, data: bytes, mode: int = OWNERS) -> None:
    """Write a file under a temporary name, then rename it: a reader never sees half of it, and of none a part stays.

    Raises OSError where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        file = Descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _write_all(file.number, data)
            if mode != OWNERS:
                os.fchmod(file.number, mode)
        finally:
            file.close()
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_whole_for_all(path: Path, data: bytes) -> None:
    """The same for a file that the user has named, outside of a run: its permissions are those of the file that it
    replaces, or what the umask leaves.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        mode = 0o666 & ~_umask()
    write_whole(path, data, mode=mode)


def _umask() -> int:
    """The umask of this process. Linux tells it (proc(5), since 4.7); os.umask could only read it by changing it."""
    try:
        with open_file("/proc/self/status", encoding="ascii", errors="replace") as lines:
            return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    except (OSError, StopIteration):
        return 0o077


def _write_all(number: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]
