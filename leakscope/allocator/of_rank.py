"""What do the snapshots say that one rank of a run has left?"""

from __future__ import annotations

import re
from pathlib import Path

from leakscope.allocator.analysis import analyse
from leakscope.allocator.figures import SnapshotReport
from leakscope.allocator.reading import read_snapshots
from leakscope.errors import Unreadable

_NAME = re.compile(r"([a-z][a-z0-9]*)_([a-z]+)_(\d{6,})\.pickle")
_FAILED = "oom"


def files_in(folder: Path) -> tuple[Path, ...]:
    """The rank's snapshot files in the order they were taken.

    `cuda_step_000012.pickle`, then `cuda_oom_000012.pickle`, which was taken after that step.
    """
    found = [
        (int(name[3]), name[2] != "step", path)
        for path in folder.glob("*.pickle")
        if (name := _NAME.fullmatch(path.name))
    ]
    return tuple(path for _, _, path in sorted(found))


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
