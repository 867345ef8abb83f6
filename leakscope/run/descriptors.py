"""Private files, written whole or line by line, that never write into a descriptor of the script's."""

from __future__ import annotations

import errno
import stat
from contextlib import suppress

from leakscope.originals import Path, _thread, fcntl, open_file, os

_STDERR = 2
OWNERS = 0o600
"""Permissions of every file in a run's folder: owner only."""

UNFINISHED = ".*.[0-9]*"
"""Pattern of temporary file names: a leading dot and the process id."""


def open_private(path: str | Path, flags: int) -> int:
    """Open a file readable and writable by its owner only, whatever the umask. Raises OSError.

    Use it for every file in a run's folder, also as the `opener` of `open`.
    """
    number = os.open(path, flags | os.O_CLOEXEC, OWNERS)
    if flags & os.O_CREAT:
        there = os.fstat(number)
        if stat.S_ISREG(there.st_mode) and stat.S_IMODE(there.st_mode) != OWNERS:
            with suppress(OSError):  # another user's file, or a file system without modes
                os.fchmod(number, OWNERS)
    return number


class Descriptor:
    """A file descriptor that is verified before use: after `os.closerange` its number may belong to the script."""

    def __init__(self, path: Path, flags: int) -> None:
        """Raises OSError if the path cannot be opened."""
        self.number = _above_streams(open_private(path, flags))
        """Valid directly after `status`."""
        there = os.fstat(self.number)
        self._device, self._inode = there.st_dev, there.st_ino

    def status(self) -> os.stat_result | None:
        """The file's stat result; None if the descriptor is no longer ours."""
        try:
            there = os.fstat(self.number)
        except OSError:
            return None
        return there if there.st_ino == self._inode and there.st_dev == self._device else None

    def close(self) -> None:
        """Close the file if it is still ours; errors are ignored."""
        if self.status() is not None:
            with suppress(OSError):
                os.close(self.number)


def _above_streams(number: int) -> int:
    """Move a descriptor above the standard streams: C code writes warnings to 2, whatever is open there."""
    if number > _STDERR:
        return number
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    finally:
        os.close(number)


class GrowingFile:
    """A file to which whole lines are added; a partly written line is removed."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the path cannot be opened."""
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
    """Write a file under a temporary name and rename it, so that a reader never sees a partial file.

    Raises OSError if it cannot be written.
    """
    # by thread too: at the end of a rank its watchdog may write the same file as the main thread
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{_thread.get_ident()}")
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
    """Replace a file outside of a run that the user named: it keeps the permissions of the file that it replaces,
    or follows the umask.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        mode = 0o666 & ~_umask()
    write_whole(path, data, mode=mode)


def _umask() -> int:
    """The umask of this process, from /proc (proc(5), since Linux 4.7); os.umask can only read it by changing it."""
    try:
        with open_file("/proc/self/status", encoding="ascii", errors="replace") as lines:
            return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    except (OSError, StopIteration):
        return 0o077


def _write_all(number: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]
