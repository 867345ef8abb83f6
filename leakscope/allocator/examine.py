"""What do these snapshot files say? Reading, analysing and judging in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leakscope.allocator.analysis import analyse
from leakscope.allocator.figures import SnapshotReport
from leakscope.allocator.judging import SnapshotsReport, compare, judge_snapshots
from leakscope.allocator.load.snapshot_files import read_snapshots
from leakscope.allocator.of_rank import rank_in
from leakscope.errors import LeakscopeError

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
