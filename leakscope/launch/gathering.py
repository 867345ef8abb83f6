"""Where is all that was recorded? In the run's folder, or in a copy made whole where that can hold no more."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from leakscope.record.descriptors import UNFINISHED, write_whole
from leakscope.record.folder import make_private, write_run
from leakscope.record.suppression import NAME as SUPPRESSIONS

_MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory (tmpfs)."""
_LEFT_OUT = ".pickle"
"""Snapshots of the allocator, which may be as large as all the rest many times over."""


def places_elsewhere() -> tuple[str, ...]:
    """Names of folders that nobody has, where files can be expected to go when the run's folder takes none any more."""
    name = f"leakscope_{uuid.uuid4().hex}"
    memory = (_MEMORY,) if os.access(_MEMORY, os.W_OK) else ()
    return tuple(str(place / name) for place in (Path(tempfile.gettempdir()), *memory))


def forget(elsewhere: Sequence[str]) -> None:
    """Remove what was made of them."""
    for place in elsewhere:
        shutil.rmtree(place, ignore_errors=True)


def folders_to_read(folder: Path, elsewhere: Sequence[str]) -> tuple[Path, ...]:
    """The run's folder, and where a copy of it can be made; to be tried one after the other."""
    return (folder, *(Path(place) / "run" for place in elsewhere))


def gather(
    folder: Path, elsewhere: Sequence[str], into: Path, run: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> None:
    """Bring all that the ranks have written elsewhere into one folder: the run's own, or a copy of what is in that.

    `run` is for `run.json`, where that is gone; `names` has the rank of a process whose number was not known.
    Raises OSError where it cannot be done; it can be tried again then.
    """
    if into == folder and not folder.is_dir():
        raise FileNotFoundError(f"{folder} was removed")  # by the script, and so not to be made again
    if into != folder:
        _copy(folder, into)
    if not (into / "run.json").is_file():
        write_run(into, run)
    for place in filter(_is_ours, map(Path, elsewhere)):
        for rank in sorted((*place.glob("rank_*"), *place.glob("process_*"))):
            target = into / (names or {}).get(rank.name, rank.name)
            make_private(target)
            for path in sorted(rank.iterdir()):
                if stat.S_ISREG(path.lstat().st_mode):
                    _move(path, target / path.name)


def _is_ours(place: Path) -> bool:
    """Whether a folder is there that no other user has made, who may have read its name in the ranks' words.

    A script that root has started may have become another user.
    """
    try:
        there = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(there.st_mode) and os.geteuid() in (there.st_uid, 0)


def sweep(folder: Path) -> None:
    """Remove the halves of files that ranks were writing when they were killed."""
    for path in folder.glob(f"rank_*/{UNFINISHED}"):
        with suppress(OSError):
            path.unlink()


def _move(path: Path, target: Path) -> None:
    """To where it should have been written: lines go on where those before them end."""
    before = b""
    if path.suffix == ".jsonl" and target.is_file():
        before = target.read_bytes()
        if before and not before.endswith(b"\n"):  # a line that was cut off
            before = before[: before.rfind(b"\n") + 1]
    write_whole(target, before + path.read_bytes())
    path.unlink()


def _copy(folder: Path, into: Path) -> None:
    for made in (into.parent, into):
        with suppress(FileExistsError):
            made.mkdir(mode=0o700)
    if not _is_ours(into.parent):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    for path in sorted((*folder.glob("run.json"), *folder.glob(SUPPRESSIONS), *folder.glob("rank_*/*"))):
        target = into / path.relative_to(folder)
        if path.is_file() and path.suffix != _LEFT_OUT and not target.exists():
            make_private(target.parent)
            write_whole(target, path.read_bytes())
