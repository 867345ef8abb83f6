"""What do the snapshot files of a rank say, in the text and on the page of its run?"""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.allocator.figures import DeviceReport, SnapshotReport
from leakscope.allocator.judging import SnapshotsReport, judge_snapshots
from leakscope.report.snapshot.plot import one_device
from leakscope.report.snapshot.wording import facts, failure_lines, title, verdict_line

_SITES_SHOWN = 12
"""Places at the most, chosen, of one device."""


def texts(reports: Sequence[SnapshotReport]) -> list[str]:
    """The verdict on each snapshot that was analysed, and how to read it in full."""
    return [f"snapshot {report.name}: {_verdict(report)}" for report in reports]


def on_page(reports: Sequence[SnapshotReport]) -> list[tuple[str, str, list[tuple[object, ...]]]]:
    """(name, verdict, [(curves, facts, failures, places) of each device]) of each."""
    return [(report.name, _verdict(report), [_device(report, d) for d in report.devices]) for report in reports]


def _device(report: SnapshotReport, device: DeviceReport) -> tuple[object, ...]:
    return one_device(title(report), device), facts(device), failure_lines(device), device.end_sites[:_SITES_SHOWN]


def _verdict(report: SnapshotReport) -> str:
    return verdict_line(SnapshotsReport((report,), judge_snapshots([report])))
