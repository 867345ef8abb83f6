"""Examines snapshot files, alone or as those of the ranks of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.memory_snapshot.analysis import SnapshotReport, analyse
from leakscope.memory_snapshot.reader import read_snapshots
from leakscope.memory_snapshot.verdict import SnapshotsReport, compare, judge_snapshots

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


_COMPARED = ("a base", "a new one")


def examine(paths: Sequence[Path], comparing: bool = False, frames: int = 1, at: int | None = None) -> SnapshotsReport:
    """Read and analyse files, as ranks named by their file names or, with `comparing`, as a base and a new one.

    Of each place `frames` of the user's frames are told, and of the event `at` what was alive after it. Files are read
    one after the other, so memory is that of the largest. Raises Unreadable for a file that is no snapshot, and
    LeakscopeError when two are to be compared and there are not two, or where no file has so many events.
    """
    reports: list[SnapshotReport] = []
    for path in paths:
        for snapshot in read_snapshots(path):
            reports.append(analyse(snapshot, rank_in(path), frames, at))
    most = max((device.events for report in reports for device in report.devices), default=0)
    if at is not None and at >= most:
        raise LeakscopeError(f"there is no event {at}: the files hold {most} at the most, counted from 0")
    reports = _named_apart(paths, reports)
    if not comparing:
        reports.sort(key=lambda report: (report.rank is None, report.rank or 0))
        return SnapshotsReport(tuple(reports), judge_snapshots(reports))
    if len(reports) != len(_COMPARED):
        raise LeakscopeError(f"comparing takes two snapshots, {' and '.join(_COMPARED)}, and {len(reports)} were given")
    return SnapshotsReport(tuple(reports), judge_snapshots(reports[1:]), compare(*reports))


def _named_apart(paths: Sequence[Path], reports: list[SnapshotReport]) -> list[SnapshotReport]:
    """Files of the same name get their folder's name before it."""
    if len({report.name for report in reports}) == len(reports) or len(reports) != len(paths):
        return reports
    return [
        replace(report, name=f"{path.parent.name}/{report.name}") for path, report in zip(paths, reports, strict=True)
    ]
