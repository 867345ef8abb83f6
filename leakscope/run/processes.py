"""Followed processes, and the rank numbers they get."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from leakscope.errors import Unreadable
from leakscope.files import read_json
from leakscope.originals import Path, fcntl, open_file, os
from leakscope.run.descriptors import open_private
from leakscope.run.rank_end import rank_name, ranks_in
from leakscope.run.rows import from_json
from leakscope.run.writer import RankFolder, make_private, write_json

WHO = "who.json"
"""File in the folder of a process with its identity."""
MAIN = "process_0000"
"""Folder of the process started by leakscope itself."""
_MAX_PROCESSES = 10_000
"""Maximum followed processes of one run. Heuristic: a pool may start one per task."""


@dataclass(frozen=True)
class ProcessInfo:
    """A process that may become a rank."""

    pid: int
    parent: int
    started: float
    """Start of its recording, in seconds since the epoch."""
    place: tuple[int, ...] = ()
    """Its position among the processes started by `multiprocessing`: (2,) is the second; () if unknown."""
    rank: int | None = None
    """Rank in the process group, or from the launcher; None without either."""
    world: int = 1
    """World size of that group."""
    trained: bool = False
    """Whether it has joined a group or taken a step."""


@dataclass(frozen=True)
class Process:
    """Such a process and its folder."""

    folder: Path
    who: ProcessInfo

    @property
    def is_main(self) -> bool:
        """Whether leakscope itself started it."""
        return self.folder.name == MAIN

    @property
    def trained(self) -> bool:
        """Whether it counts as a rank."""
        return self.who.trained or (self.folder / "steps.jsonl").exists()


def claim(folder: Path) -> str:
    """Create a folder for this process and return its name. Raises OSError."""
    make_private(folder)
    for number in range(1, _MAX_PROCESSES):
        path = folder / f"process_{number:04d}"
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path.name
    raise FileExistsError(f"{_MAX_PROCESSES} processes are recorded already")


def write_who(folder: Path, who: ProcessInfo) -> None:
    """Write the identity of a process into its folder. Raises OSError."""
    make_private(folder)
    write_json(folder / WHO, asdict(who))


def processes_in(folder: Path) -> list[Process]:
    """The processes with a folder in a run; damaged ones are skipped."""
    found = []
    for path in sorted(folder.iterdir()):
        if re.fullmatch(r"process_[0-9]{4,9}", path.name) and path.is_dir():
            with suppress(Unreadable, ValueError):
                found.append(Process(path, from_json(ProcessInfo, read_json(path / WHO))))
    return found


def numbered(processes: Iterable[Process]) -> Mapping[int, Process]:
    """Assign processes to ranks; of several with the same rank, the last.

    Processes without a rank follow, in the order of their start. If none has trained, the only one is that started by
    leakscope.
    """
    every = list(processes)
    trained = [process for process in every if process.trained]
    if not trained:
        return dict(enumerate(process for process in every if process.is_main))
    ranks: dict[int, Process] = {}
    for process in sorted(trained, key=lambda one: one.who.started):
        if process.who.rank is not None:
            ranks[process.who.rank] = process
    rest = (process for process in trained if process.who.rank is None)
    free = itertools.count(max(ranks, default=-1) + 1)
    for process in sorted(rest, key=lambda one: (not one.is_main, one.who.place, one.who.started)):
        ranks[next(free)] = process
    return dict(sorted(ranks.items()))


LOCK = ".processes"
"""Lock file in the run's folder, held while links are changed."""


@dataclass(frozen=True)
class RankAssignment:
    """The outcome of assigning a run's processes to ranks."""

    ranks: int
    """How many the run has, including those that left nothing."""
    main: int | None
    """The rank of the process started by leakscope; None if it has not trained and others have."""


def link(folder: Path) -> None:
    """Link each rank's name to the folder of its process, as far as known. Raises OSError."""
    with open_file(folder / LOCK, "ab", opener=open_private) as lock:  # closing it gives the lock back
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        ranks = numbered(processes_in(folder))
        for number, process in ranks.items():
            path, new = folder / rank_name(number), folder / f".{rank_name(number)}"
            if path.is_symlink() and os.readlink(path) == process.folder.name:
                continue
            new.unlink(missing_ok=True)
            new.symlink_to(process.folder.name)
            new.replace(path)
        for number in set(ranks_in(folder)) - set(ranks):
            if (folder / rank_name(number)).is_symlink():
                (folder / rank_name(number)).unlink()


def assign_ranks(folder: Path) -> RankAssignment:
    """Replace each link by the folder itself, once nobody writes any more. Raises OSError."""
    with open_file(folder / LOCK, "ab", opener=open_private) as lock:  # closing it gives the lock back
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        processes = processes_in(folder)
        ranks = numbered(processes)
        for path in [folder / rank_name(number) for number in ranks_in(folder)]:
            if path.is_symlink():
                path.unlink()
        _note_earlier(processes, ranks)
        for number, process in ranks.items():
            process.folder.rename(folder / rank_name(number))
    (folder / LOCK).unlink(missing_ok=True)
    counts = [*(number + 1 for number in ranks), *(process.who.world for process in ranks.values())]
    return RankAssignment(
        max(counts, default=1),
        next((number for number, process in ranks.items() if process.is_main), None),
    )


def _note_earlier(processes: list[Process], ranks: Mapping[int, Process]) -> None:
    """Note the processes that trained and whose rank another process took over, as after a restart."""
    taken = {process.folder for process in ranks.values()}
    for process in (one for one in processes if one.trained and one.folder not in taken):
        with suppress(OSError):
            file = process.folder / "steps.jsonl"
            steps = len(file.read_bytes().splitlines()) if file.exists() else 0
            rank = process.who.rank or 0
            folder = RankFolder(process.folder.parent, rank, process=ranks[rank].folder.name)
            folder.note(
                f"the rank was restarted: the {steps} steps of its earlier process are not included "
                f"({process.folder.name})"
            )
            folder.close()
