"""Writes a rank's folder, or a spare one where it cannot be written."""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from leakscope.errors import LeakscopeError
from leakscope.originals import Path, _thread, open_file, os, shutil
from leakscope.run.descriptors import NO_MORE, GrowingFile, Reserve, open_private, write_whole
from leakscope.run.model import FORMAT, Ended, GcDiff, Look, Step
from leakscope.run.rank_end import NAME as ENDED
from leakscope.run.rank_end import ended_to_json, rank_name
from leakscope.run.rows import Row, to_line
from leakscope.run.rows import to_json as row_to_json
from leakscope.run.secrets import json_of
from leakscope.run.suppression import NAME as SUPPRESSIONS

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


ASKED = ".asked"
"""File in which it is noted that somebody asks a run that goes on; of no use to anybody after it."""
INTERIM = "interim"
"""Folder of the reports of a run that were made while it went on, in one folder each."""
_OWNERS = 0o700
"""Permissions of a run's folder: its owner's alone."""


class RankFolder:
    """Writes one rank's files; every line is written at once, every whole file appears at once.

    What cannot be written into the run's folder goes into the first of `elsewhere` that takes it, which a note tells.
    Whatever is asked for raises OSError where it cannot be written anywhere.
    """

    def __init__(self, folder: Path, rank: int, elsewhere: Sequence[str] = (), process: str = "") -> None:
        """`process` names the folder of a process whose number among the ranks may still change."""
        name = process or rank_name(rank)
        self.path = folder / name
        with suppress(OSError):  # then all goes elsewhere
            make_private(folder)
            make_private(self.path)
        self._places = Places(self.path, [Path(place) / name for place in elsewhere])
        self._told = False

    def append(self, row: Row) -> None:
        """Add a row to the file of its kind."""
        self.append_line(row.FILE, to_line(row))

    def append_line(self, stem: str, line: Mapping[str, Any]) -> None:
        """Add one line to `<stem>.jsonl`."""
        self._places.add_line(f"{stem}.jsonl", json_of(line) + b"\n")
        if self._places.why and not self._told:
            self._tell()

    def write(self, name: str, data: Any) -> None:
        """Write a whole file of JSON."""
        self._places.write(name, json_of(data))
        if self._places.why and not self._told:
            self._tell()

    def _tell(self) -> None:
        self._told = True
        self.note(f"the run's folder could not be written any more: {self._places.why}")

    def step(self, step: Step) -> None:
        """Add the counters of a step that has ended."""
        # not by asdict, which copies every number: this is done in each step
        line = {**vars(step), "collections": [vars(c) for c in step.collections]}
        for name, usual in (("input_elements", None), ("new_shapes", 0)):
            if line[name] == usual:
                del line[name]
        self.append_line("steps", line)

    def look(self, look: Look) -> None:
        """Write a look, named after its step and occasion."""
        self.write(look_name(look), _look_to_json(look))

    def ended(self, ended: Ended) -> None:
        """Write how the rank ended, over what was written of that before."""
        self.write(ENDED, ended_to_json(ended))

    def gc_diff(self, diff: GcDiff) -> None:
        """Write what collecting freed."""
        self.write("gc_diff.json", row_to_json(diff))

    def proved(self, proved: Mapping[str, int | str]) -> None:
        """Write what the cuts that were made in a forked copy freed, by fingerprint."""
        self.write("proved.json", dict(proved))

    def note(self, text: str) -> None:
        """Add a sentence that the reader should know."""
        self.append_line("notes", {"note": text})

    def close(self) -> None:
        """Close the files that lines were added to."""
        self._places.close()


def look_name(look: Look) -> str:
    """Name of a look's file: `heap_step_000012.json`."""
    return f"heap_{look.occasion}_{look.step:06d}.json"


def snapshot_name(kind: str, step: int, occasion: str) -> str:
    """Name of an allocator snapshot's file: `cuda_step_000012.pickle`, named like the look it was taken at."""
    return f"{kind}_{occasion}_{step:06d}.pickle"


def write_json(path: Path, data: Any) -> None:
    """Write a whole file of JSON under a temporary name, then rename: a reader never sees half of it."""
    write_whole(path, json_of(data))


def make_private(folder: Path) -> None:
    """Make a folder, and those above it, that only its owner may enter whatever the umask; one that is there stays as
    it is. It holds the script's words and source. Raises OSError.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another rank was first; or a file, which the caller will find
            folder.mkdir(mode=_OWNERS)
            _keep_to_owner(folder)


def who_else_may_enter(folder: Path) -> str:
    """A sentence where other users may enter a run's folder, as one that was there already; "" where they may not."""
    try:
        there = folder.stat()
    except OSError:
        return ""
    mode = stat.S_IMODE(there.st_mode)
    if there.st_uid != os.geteuid():
        return f"{folder} belongs to another user (mode {mode:04o}), who may enter it and remove what is there"
    if mode & ~_OWNERS & 0o777:
        return (
            f"{folder} was there already, and others may enter it (mode {mode:04o}); only you may read the run's files"
        )
    return ""


def write_named(file: Path, data: bytes) -> None:
    """Write a file that the user has named. In a run's folder it is its owner's alone; elsewhere the umask decides.

    Raises OSError.
    """
    in_run = any((above / "run.json").exists() for above in file.resolve().parents)
    with open_file(file, "wb", opener=open_private if in_run else None) as stream:
        stream.write(data)


def _keep_to_owner(folder: Path) -> None:
    with suppress(PermissionError):  # a file system without modes, or somebody else's folder
        folder.chmod(_OWNERS)


def write_run(folder: Path, data: Mapping[str, Any]) -> None:
    """Write `run.json`: format, command, ranks, device, torch, leakscope, heap_reader, options; see `read_run`."""
    make_private(folder)
    write_json(folder / "run.json", {"format": FORMAT, **data})


def time_now() -> str:
    """`2026-11-23T04:27:19Z`, as `run.json` says when a run was started."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _look_to_json(look: Look) -> dict[str, Any]:
    from leakscope.graph.serialize import to_json

    data = {name: getattr(look, name) for name in look.__dataclass_fields__ if name != "heap"}
    gaining = {"containers": [row_to_json(row) for row in look.containers]}
    return {**data, **gaining, "types": dict(look.types), "unjudged": list(look.unjudged), "heap": to_json(look.heap)}


def prepare_folder(folder: Path, force: bool) -> None:
    """Make the run's folder; an existing run is replaced only with `force`.

    Raises LeakscopeError when it exists, holds anything but a run, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not force:
                raise LeakscopeError(f"{folder} exists already; give another --output, or --force to replace it")
            if not (folder / "run.json").is_file():
                raise LeakscopeError(
                    f"{folder} holds no leakscope run, so --force will not replace it; give another --output"
                )
            _remove_run(folder)
            _keep_to_owner(folder)
        make_private(folder)
        probe = folder / ".writable"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise LeakscopeError(f"cannot write to {folder}: {error.strerror}; give another --output") from None


def _remove_run(folder: Path) -> None:
    for path in folder.iterdir():
        of_process = re.fullmatch(r"(rank|process)_\d{4,}", path.name) is not None
        if path.is_dir() and not path.is_symlink() and (of_process or path.name in ("logs", INTERIM)):
            shutil.rmtree(path)
        elif of_process or path.name in ("run.json", "findings.json", "report.html", SUPPRESSIONS, ASKED):
            path.unlink()
