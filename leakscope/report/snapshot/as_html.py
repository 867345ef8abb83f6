"""What a memory snapshot says, as one page that opens offline."""

from __future__ import annotations

from pathlib import Path

from leakscope.allocator.figures import DeviceReport, SnapshotReport
from leakscope.allocator.judging import SnapshotsReport
from leakscope.report.cleaning import cleaned
from leakscope.report.snapshot.as_text import signed
from leakscope.report.snapshot.plot import Curve, one_device, together
from leakscope.report.snapshot.wording import (
    concern_text,
    each_kind_text,
    facts,
    failure_lines,
    host_text,
    kinds_text,
    label_text,
    settings_text,
    title,
    verdict_line,
)
from leakscope.units import bytes_text

_PAGE = Path(__file__).with_name("page.html")
"""The template; all that is filled in is escaped."""


def snapshot_html(report: SnapshotsReport) -> str:
    """The report as one HTML page without a script or an outside address; all that comes from the files is escaped."""
    from jinja2 import Environment

    report = cleaned(report)
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters.update(
        size=bytes_text, signed=signed, title=title, facts=facts, failures=failure_lines, host=host_text,
        kinds=kinds_text, label=label_text, each_kind=each_kind_text, settings=settings_text, plot=_plot,
    )  # fmt: skip
    several = len(report.snapshots) > 1
    page = environment.from_string(_PAGE.read_text(encoding="utf-8")).render(
        verdict=verdict_line(report),
        word=report.judgement.verdict,
        concerns=[concern_text(concern, several) for concern in report.judgement.concerns],
        snapshots=report.snapshots,
        comparison=report.comparison,
        together=together(_curves(report.snapshots)) if several else None,
        rows=20,
        drawn=8,
    )
    return page + "\n"


def _curves(snapshots: tuple[SnapshotReport, ...]) -> list[Curve]:
    """One curve for each device of each snapshot."""
    return [
        Curve(title(snapshot) + (f", device {device.device}" if len(snapshot.devices) > 1 else ""), device.timeline)
        for snapshot in snapshots
        for device in snapshot.devices
    ]


def _plot(device: DeviceReport, snapshot: SnapshotReport) -> object:
    return one_device(title(snapshot), device)
