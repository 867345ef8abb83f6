"""Writes a run's folder and those of its ranks."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from leakscope._version import __version__
from leakscope.errors import LeakscopeError
from leakscope.options import Options
from leakscope.originals import Path, _thread, open_file, os, shutil
from leakscope.run.descriptors import GrowingFile, open_private, write_whole
from leakscope.run.fixes import NAME as FIX
from leakscope.run.fixes import PATCH, WORK, Fix
from leakscope.run.model import FORMAT, Ended, GcDiff, HeapSnapshot, Step
from leakscope.run.rank_end import NAME as ENDED
from leakscope.run.rank_end import rank_name
from leakscope.run.rows import Row, to_line
from leakscope.run.rows import to_json as row_to_json
from leakscope.run.secrets import json_of, masked
from leakscope.run.suppression import NAME as SUPPRESSIONS

REQUEST_FILE = ".asked"
"""File that records the requests to a running job; unused afterwards."""
INTERIM = "interim"
"""Folder with the reports made while a run was in progress, each in its own folder."""
_OWNERS = 0o700
"""Permissions of a run's folder: owner only."""


class RankFolder:
    """Writes one rank's files; every line is written at once, every whole file appears at once.

    Every write raises OSError where it fails: the disk is full, the folder is gone, the script has closed the file.
    """

    def __init__(self, folder: Path, rank: int, process: str = "") -> None:
        """`process` names the folder of a process whose rank may still change."""
        self.path = folder / (process or rank_name(rank))
        with suppress(OSError):  # the first file that is written says why
            make_private(folder)
            make_private(self.path)
        self._growing: dict[str, GrowingFile] = {}
        self._one_at_a_time = _thread.RLock()

    def append(self, row: Row) -> None:
        """Add a row to the file of its kind."""
        self.append_line(row.FILE, to_line(row))

    def append_line(self, stem: str, line: Mapping[str, Any]) -> None:
        """Add one line to `<stem>.jsonl`."""
        data = json_of(line) + b"\n"
        with self._one_at_a_time:
            file = self._growing.get(stem)
            if file is None:
                file = self._growing[stem] = GrowingFile(self.path / f"{stem}.jsonl")
            file.add(data)

    def write(self, name: str, data: Any) -> None:
        """Write a whole file of JSON."""
        write_json(self.path / name, data)

    def step(self, step: Step) -> None:
        """Add the counters of a step."""
        # not by asdict, which copies every number: this is done in each step
        line = {**vars(step), "collections": [vars(c) for c in step.collections]}
        for name, usual in (("input_elements", None), ("new_shapes", 0)):
            if line[name] == usual:
                del line[name]
        self.append_line("steps", line)

    def write_snapshot(self, snapshot: HeapSnapshot) -> None:
        """Write a heap snapshot, named after its step and occasion."""
        self.write(heap_file_name(snapshot), _snapshot_to_json(snapshot))

    def ended(self, ended: Ended) -> None:
        """Write how the rank ended, replacing an earlier record."""
        self.write(ENDED, row_to_json(ended))

    def gc_diff(self, diff: GcDiff) -> None:
        """Write the result of the gc diff."""
        self.write("gc_diff.json", row_to_json(diff))

    def proved(self, proved: Mapping[str, int | str]) -> None:
        """Write the bytes freed by the cuts made in a forked copy, by fingerprint."""
        self.write("proved.json", dict(proved))

    def note(self, text: str) -> None:
        """Add a note for the reader."""
        self.append_line("notes", {"note": text})

    def close(self) -> None:
        """Close the open files."""
        with self._one_at_a_time:
            for file in self._growing.values():
                file.close()
            self._growing.clear()


def heap_file_name(snapshot: HeapSnapshot) -> str:
    """Name of a heap snapshot's file: `heap_step_000012.json`."""
    return f"heap_{snapshot.occasion}_{snapshot.step:06d}.json"


def snapshot_name(kind: str, step: int, occasion: str) -> str:
    """Name of an allocator snapshot's file, after the heap snapshot at the same time: `cuda_step_000012.pickle`."""
    return f"{kind}_{occasion}_{step:06d}.pickle"


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file under a temporary name and rename it, so that a reader never sees a partial file."""
    write_whole(path, json_of(data))


def make_private(folder: Path) -> None:
    """Create a folder and its parents, accessible by the owner only whatever the umask; existing ones are unchanged. It
    contains the script's arguments and source. Raises OSError.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another rank was first; or a file, which the caller will find
            folder.mkdir(mode=_OWNERS)
            _keep_to_owner(folder)


def who_else_may_enter(folder: Path) -> str:
    """A sentence if other users may enter a run's folder, such as an existing one; "" if not."""
    try:
        there = folder.stat()
    except OSError:
        return ""
    mode = stat.S_IMODE(there.st_mode)
    if there.st_uid != os.geteuid():
        return f"{folder} belongs to another user (mode {mode:04o}), who can read and delete its files"
    if mode & ~_OWNERS & 0o777:
        return f"{folder} already existed and others may enter it (mode {mode:04o}); only you can read the run's files"
    return ""


def write_named(file: Path, data: bytes) -> None:
    """Write a file that the user named: in a run's folder for the owner only, elsewhere following the umask.

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


def initial_header(options: Options, command: Sequence[str]) -> dict[str, Any]:
    """What `run.json` contains before anything is recorded."""
    return {
        "command": list(masked(command)),
        "ranks": options.world,
        "leakscope": __version__,
        "started": time_now(),
        "options": options.recorded,
    }


def time_now() -> str:
    """`2026-11-23T04:27:19Z`, as `run.json` says when a run was started."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _snapshot_to_json(snapshot: HeapSnapshot) -> dict[str, Any]:
    from leakscope.graph.serialize import to_json

    data = {name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__ if name != "heap"}
    gaining = {"containers": [row_to_json(row) for row in snapshot.containers]}
    return {
        **data,
        **gaining,
        "types": dict(snapshot.types),
        "unjudged": list(snapshot.unjudged),
        "heap": to_json(snapshot.heap),
    }


def prepare_folder(folder: Path, force: bool) -> None:
    """Create the run's folder; an existing run is replaced only with `force`.

    Raises LeakscopeError if it exists, contains anything but a run, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not force:
                raise LeakscopeError(f"{folder} exists already; give another --output, or --force to replace it")
            if not (folder / "run.json").is_file():
                raise LeakscopeError(
                    f"{folder} is not a leakscope run, so --force will not replace it; give another --output"
                )
            _remove_run(folder)
            _keep_to_owner(folder)
        make_private(folder)
        probe = folder / ".writable"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise LeakscopeError(f"cannot write to {folder}: {error.strerror}; give another --output") from None


_FILES = ("run.json", "findings.json", "report.html", SUPPRESSIONS, REQUEST_FILE, FIX, PATCH)
"""Files of a run beside the folders of its ranks."""


def _remove_run(folder: Path) -> None:
    for path in folder.iterdir():
        of_process = re.fullmatch(r"(rank|process)_\d{4,}", path.name) is not None
        if path.is_dir() and not path.is_symlink() and (of_process or path.name in ("logs", INTERIM, WORK)):
            shutil.rmtree(path)
        elif of_process or path.name in _FILES:
            path.unlink()


def write_fix(folder: Path, fix: Fix) -> None:
    """Write `fix.json` and, if anything was proved, `fix.patch` into the folder of a run."""
    write_json(folder / FIX, row_to_json(fix))
    patch = folder / PATCH
    patch.unlink(missing_ok=True)
    if fix.patch:
        write_whole(patch, fix.patch.encode(errors="surrogateescape"))
