"""Which rank wrote a snapshot, and what do those say that one rank of a run has left?"""

from __future__ import annotations

import re
from pathlib import Path

from leakscope.allocator.analysis import analyse
from leakscope.allocator.figures import SnapshotReport
from leakscope.allocator.load.snapshot_files import read_snapshots
from leakscope.errors import Unreadable

_NAME = re.compile(r"([a-z][a-z0-9]*)_([a-z]+)_(\d{6,})\.pickle")
_FAILED = "oom"
_RANK = re.compile(r"(?:^|[^a-z])rank[_\-=. ]?0*(\d{1,6})", re.IGNORECASE)
_SHORT = re.compile(r"(?:^|[_\-.])r0*(\d{1,6})(?=[_\-.]|$)", re.IGNORECASE)


def files_in(folder: Path) -> tuple[Path, ...]:
    """The rank's snapshot files in the order they were taken.

    `cuda_step_000012.pickle`, then `cuda_oom_000012.pickle`, which was taken after that step.
    """
    named = [
        (int(name[3]), name[2] != "step", path)
        for path in folder.glob("*.pickle")
        if (name := _NAME.fullmatch(path.name))
    ]
    return tuple(path for _, _, path in sorted(named))


def snapshots_in(folder: Path, rank: int) -> tuple[tuple[SnapshotReport, ...], tuple[str, ...]]:
    """The newest snapshot and the one of the last failure, analysed; and what could not be read, each a sentence."""
    files = files_in(folder)
    failed = [path for path in files if f"_{_FAILED}_" in path.name]
    reports: list[SnapshotReport] = []
    problems: list[str] = []
    for path in dict.fromkeys([*failed[-1:], *files[-1:]]):
        try:
            reports += [analyse(snapshot, rank) for snapshot in read_snapshots(path)]
        except Unreadable as error:
            problems.append(str(error))
    return tuple(reports), tuple(problems)


def rank_in(path: Path) -> int | None:
    """The rank in a file's name, or in the nearest folder's that has one (`rank_0003/cuda.pickle`), else None.

    A snapshot itself does not say which rank wrote it.
    """
    for part in (path.name, *(parent.name for parent in path.parents)):
        if match := _RANK.search(part):
            return int(match[1])
    match = _SHORT.search(path.name)
    return int(match[1]) if match else None
