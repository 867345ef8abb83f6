"""Where is a rank's folder while its number may still change? A link leads to that of its process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from leakscope.originals import Path, fcntl, open_file, os
from leakscope.record.descriptors import open_private
from leakscope.record.ends import rank_name, ranks_in
from leakscope.record.folder import RankFolder
from leakscope.record.processes.process import Process, earlier, numbered, processes_in, worlds

LOCK = ".processes"
"""In the run's folder: held by whoever changes links."""


@dataclass(frozen=True)
class Settled:
    """What has become of the processes of a run."""

    ranks: int
    """How many the run has."""
    main: int | None
    """Which of them leakscope itself has started; None where that one has not trained, and others have."""
    numbers: dict[int, int]
    """Number of a process to that of its rank."""
    names: dict[str, str]
    """`process_0001` to `rank_0000`."""


def link(folder: Path) -> None:
    """Let each rank's name lead to the folder of its process, as far as that is known now. Raises OSError."""
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


def settle(folder: Path) -> Settled:
    """Make each rank's folder the one that its link leads to: nobody writes any more. Raises OSError."""
    with open_file(folder / LOCK, "ab", opener=open_private) as lock:  # closing it gives the lock back
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        processes = processes_in(folder)
        ranks = numbered(processes)
        for path in [folder / rank_name(number) for number in ranks_in(folder)]:
            if path.is_symlink():
                path.unlink()
        _note_earlier(processes, ranks)
        names = {process.folder.name: rank_name(number) for number, process in ranks.items()}
        for old, new in names.items():
            (folder / old).rename(folder / new)
    (folder / LOCK).unlink(missing_ok=True)
    return Settled(
        worlds(ranks),
        next((number for number, process in ranks.items() if process.is_main), None),
        {process.who.pid: number for number, process in ranks.items()},
        names,
    )


def _note_earlier(processes: list[Process], ranks: Mapping[int, Process]) -> None:
    for process in earlier(processes, ranks):
        with suppress(OSError):
            file = process.folder / "steps.jsonl"
            steps = len(file.read_bytes().splitlines()) if file.exists() else 0
            rank = process.who.rank or 0
            folder = RankFolder(process.folder.parent, rank, process=ranks[rank].folder.name)
            folder.note(
                f"it was started again: the process that was this rank before took {steps} steps, which are not told "
                f"here ({process.folder.name})"
            )
            folder.close()
