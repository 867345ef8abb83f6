"""What is asked of a run that goes on? A file in its folder has a byte for each time that a look was asked for."""

from __future__ import annotations

import os
from pathlib import Path

ASKED = ".asked"
"""Name of the file, in the run's folder; of no use to anybody after the run."""


def ask(folder: Path) -> int:
    """Ask all ranks of the run for a look; gives the number of the request, 1 for the first. Raises OSError."""
    file = os.open(folder / ASKED, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, b"?")
        return os.lseek(file, 0, os.SEEK_CUR)  # right after the byte that was added here, whoever else adds some
    finally:
        os.close(file)


def times_asked(file: Path) -> int:
    """How often a look was asked for so far."""
    try:
        return os.stat(file).st_size
    except OSError:
        return 0
