"""Where does a rank write? Into its folder, and where that cannot be written any more, into one kept for that case."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress

from leakscope.originals import Path, _thread, os
from leakscope.record.descriptors import NO_MORE, GrowingFile, Reserve, write_whole

MAX_ELSEWHERE = 64 << 20
"""Bytes, chosen, that one rank writes outside of the run's folder: it may be memory that they take."""


class Places:
    """The folder of a rank, and those that take its files once it is full, gone, or not to be written any more."""

    def __init__(self, first: Path, others: Sequence[Path] = ()) -> None:
        """None of `others` has to be there."""
        self._all = (first, *others)
        self._at = 0
        self._growing: dict[str, GrowingFile] = {}
        self._elsewhere = 0
        self._reserve = Reserve(first)
        self._one_at_a_time = _thread.RLock()
        self.why = ""
        """What kept the first folder from being written: `No space left on device`; "" while nothing does."""

    def add_line(self, name: str, line: bytes) -> None:
        """Add a line to a file of this name. Raises OSError where it cannot be written anywhere."""
        file = self._growing.get(name)
        if file is not None and not self._at:  # as nearly always; where it fails, again below
            with self._one_at_a_time:
                try:
                    return file.add(line)
                except OSError:
                    pass

        def add(folder: Path) -> None:
            file = self._growing.get(name)
            if file is None:
                file = self._growing[name] = GrowingFile(folder / name, self._reserve)
            file.add(line)

        self._write(add, len(line))

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file of this name. Raises OSError where it cannot be written anywhere."""
        self._write(lambda folder: write_whole(folder / name, data, self._reserve), len(data))

    def close(self) -> None:
        """Close all files."""
        self._forget()
        self._reserve.let_go()

    def _write(self, write: Callable[[Path], None], size: int) -> None:
        with self._one_at_a_time:
            self._write_somewhere(write, size)

    def _write_somewhere(self, write: Callable[[Path], None], size: int) -> None:
        failed: OSError | None = None
        for at in range(self._at, len(self._all)):
            if at > self._at:
                self._forget()  # what goes on elsewhere goes on in files of the same names
            try:
                if at:
                    self._enter(self._all[at], size)
                self._write_into(self._all[at], write)
            except OSError as error:
                failed = failed or error
                continue
            if at > self._at and failed is not None:
                self._at, self.why = at, failed.strerror or type(failed).__name__
            self._elsewhere += size if at else 0
            return
        if failed is not None:
            self._forget()
            raise failed

    def _write_into(self, folder: Path, write: Callable[[Path], None]) -> None:
        try:
            write(folder)
        except OSError as error:
            if error.errno not in NO_MORE or not self._growing:
                raise
            self._forget()  # each is opened again for its next line
            write(folder)

    def _enter(self, folder: Path, size: int) -> None:
        if self._elsewhere + size > MAX_ELSEWHERE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for made in (folder.parent, folder):
            with suppress(FileExistsError):
                os.mkdir(made, 0o700)
        there = os.lstat(folder.parent)
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():  # made by who read its name
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def _forget(self) -> None:
        for file in self._growing.values():
            with suppress(OSError):
                file.close()
        self._growing.clear()
