"""Text, HTML and JSON of a memory snapshot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.memory_snapshot.analysis import DeviceReport, SnapshotReport
from leakscope.memory_snapshot.sites import SiteBytes
from leakscope.memory_snapshot.verdict import Comparison, SnapshotsReport, judge_snapshots
from leakscope.report import charts
from leakscope.report.escape import cleaned, one_line
from leakscope.report.memory_snapshot.words import (
    concern_text,
    each_kind_text,
    facts,
    failure_lines,
    failure_texts,
    host_text,
    kinds_text,
    label_text,
    room_texts,
    settings_text,
    title,
    verdict_line,
)
from leakscope.units import bytes_text

if TYPE_CHECKING:
    from markupsafe import Markup


_ROWS = 10
"""Places at the most, chosen, of one table."""


def snapshot_text(report: SnapshotsReport) -> str:
    """The report as plain text, the verdict first; ends with a line feed."""
    report = cleaned(report)
    lines = [one_line(verdict_line(report))]
    if len(report.judgement.concerns) > 1:
        several = len(report.snapshots) > 1
        lines += [
            "",
            "Noticed",
            *(f"  - {one_line(concern_text(concern, several))}" for concern in report.judgement.concerns),
        ]
    if report.comparison is not None:
        lines += _comparison(report.comparison)
    if len(report.snapshots) > 1 and report.comparison is None:
        lines += _ranks(report.snapshots)
    for snapshot in report.snapshots:
        lines += ["", one_line(title(snapshot))]
        settings = settings_text(snapshot.settings)
        lines += [f"  settings: {one_line(settings)}"] if settings else []
        for device in snapshot.devices:
            lines += _device(device, len(snapshot.devices) > 1)
        if snapshot.host is not None:
            lines.append(f"  {host_text(snapshot.host)}")
    return "\n".join(lines) + "\n"


def _device(device: DeviceReport, several: bool) -> list[str]:
    lines = [f"  device {device.device}"] if several else []
    rows = facts(device)
    width = max(len(label) for label, _ in rows)
    lines += [f"  {label:<{width}}  {one_line(text)}" for label, text in rows]
    lines += [f"  note: {note}" for note in device.notes]
    lines += [f"  out of memory at {one_line(text)}" for text in failure_texts(device)]
    for failure in device.out_of_memory[:1]:
        lines += [f"    {text}" for text in room_texts(failure)]
        lines += _sites("alive when memory ran out, by first user frame", failure.alive_sites)
    if device.moment is not None:
        moment = device.moment
        lines.append(
            f"  after event {moment.event}: {bytes_text(moment.alive_bytes)} alive of "
            f"{bytes_text(moment.reserved_bytes)} reserved; {kinds_text(moment.categories)}"
        )
        lines += _sites("alive then, by first user frame", moment.sites)
    lines += _regions(device)
    if device.labels:
        lines.append("  made in compiled regions, or under metadata that the script has set")
        lines += [
            f"    {bytes_text(label.peak_bytes):>12} at most  {bytes_text(label.at_peak_bytes):>12} at the peak  "
            f"{bytes_text(label.end_bytes):>12} at the end  {label.allocations:>4}x  {one_line(label_text(label))}"
            for label in device.labels[:_ROWS]
        ]
    growing = device.growth.growing
    if growing:
        lines.append("  allocated each step and never freed")
        lines += [
            f"    {bytes_text(grown.bytes_per_step):>12} a step  {bytes_text(grown.kept_bytes):>12} kept  "
            f"{grown.steps:>4} steps  {one_line(grown.site.where)}"
            for grown in growing[:_ROWS]
        ]
    lines += _sites("alive at the end, by first user frame", device.end_sites)
    if device.peak_event >= 0:
        lines += _sites("alive at the peak, by first user frame", device.peak_sites)
    return lines


def _regions(device: DeviceReport) -> list[str]:
    lines = ["  within annotated regions, with the kinds when most was alive"] if device.regions else []
    for region, kinds in list(zip(device.regions, device.region_categories, strict=True))[:_ROWS]:
        most, left = bytes_text(region.peak_bytes), bytes_text(region.left_bytes)
        name = one_line(region.name)
        lines.append(f"    {most:>12} at most  {left:>12} left by the last  {region.times:>4}x  {name}")
        lines += [f"    {'':>12} {each_kind_text(kinds)}"] if kinds else []
    return lines


def _sites(heading: str, sites: Sequence[SiteBytes]) -> list[str]:
    if not sites:
        return []
    lines = [f"  {heading}"]
    for entry in sites[:_ROWS]:
        through = f", through {entry.site.through}" if entry.site.through else ""
        lines.append(f"    {bytes_text(entry.bytes):>12} {entry.count:>7}x  {one_line(entry.site.where + through)}")
        lines += [f"    {'':>12} {'':>8}    from {one_line(caller)}" for caller in entry.callers]
    if len(sites) > _ROWS:
        rest = sites[_ROWS:]
        lines.append(f"    {bytes_text(sum(entry.bytes for entry in rest)):>12} {'':>8}  in {len(rest)} more places")
    return lines


def _ranks(snapshots: Sequence[SnapshotReport]) -> list[str]:
    lines = ["", f"{'':<24} {'end':>12} {'peak':>12} {'reserved':>12} {'pending':>12}"]
    for snapshot in snapshots:
        name = f"rank {snapshot.rank}" if snapshot.rank is not None else snapshot.name
        for device in snapshot.devices:
            label = one_line(f"{name}, device {device.device}" if len(snapshot.devices) > 1 else name)
            figures = (device.requested_bytes, device.peak_bytes, device.reserved_bytes, device.pending.bytes)
            lines.append(f"{label[:24]:<24} " + " ".join(f"{bytes_text(figure):>12}" for figure in figures))
    return lines


def _comparison(comparison: Comparison) -> list[str]:
    lines = [
        "",
        one_line(f"{comparison.new.name} against {comparison.base.name}: end {signed(comparison.end_bytes)}, "
                 f"peak {signed(comparison.peak_bytes)}, reserved {signed(comparison.reserved_bytes)}"),
        f"  {'end':>13} {'peak':>13}  place",
    ]  # fmt: skip
    for site in comparison.sites[: 2 * _ROWS]:
        end, peak = site.new_end_bytes - site.base_end_bytes, site.new_peak_bytes - site.base_peak_bytes
        lines.append(f"  {signed(end):>13} {signed(peak):>13}  {one_line(site.where)}")
    if not comparison.sites:
        lines.append("  no place differs")
    return lines


def signed(count: int) -> str:
    """A difference in bytes with its sign."""
    return ("+" if count > 0 else "") + bytes_text(count)


def _device_chart(report: SnapshotReport, device: DeviceReport) -> Markup:
    """The chart of one device, with the peak and the failures pointed at; empty without a history."""
    from markupsafe import Markup

    moments = [charts.Moment(device.peak_event, f"peak {bytes_text(device.peak_bytes)}")]
    moments += [charts.Moment(failure.event, "out of memory", is_failure=True) for failure in device.out_of_memory]
    return Markup(charts.snapshot_chart(title(report), device.timeline, moments))


def _together(snapshots: Sequence[SnapshotReport]) -> Markup:
    """One chart with a curve for each device of each snapshot; empty when none has a history."""
    from markupsafe import Markup

    return Markup(
        charts.snapshots_chart(
            [
                (title(each) + (f", device {device.device}" if len(each.devices) > 1 else ""), device.timeline)
                for each in snapshots
                for device in each.devices
            ]
        )
    )


def snapshot_html(report: SnapshotsReport) -> str:
    """The report as one HTML page without a script or an outside address; all that comes from the files is escaped."""
    from jinja2 import Environment, FileSystemLoader

    report = cleaned(report)
    folder = Path(__file__).parent
    # the other folder has the colours that all pages share
    loader = FileSystemLoader([folder, folder.with_name("html")])
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters.update(
        size=bytes_text, signed=signed, title=title, facts=facts, failures=failure_lines, host=host_text,
        kinds=kinds_text, label=label_text, each_kind=each_kind_text, settings=settings_text, chart=_device_chart,
    )  # fmt: skip
    several = len(report.snapshots) > 1
    page = environment.get_template("page.html").render(
        verdict=verdict_line(report),
        word=report.judgement.verdict,
        concerns=[concern_text(concern, several) for concern in report.judgement.concerns],
        snapshots=report.snapshots,
        comparison=report.comparison,
        together=_together(report.snapshots) if several else "",
        rows=20,
        drawn=8,
    )
    return page + "\n"


FORMAT = 1
"""Number of this file's format; a newer one may have other fields."""


def snapshot_json(report: SnapshotsReport) -> str:
    """The report as JSON, bytes as whole numbers, unknown as null; the fields are those of the report's dataclasses."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "verdict": report.judgement.verdict,
        "line": verdict_line(report),
        "why": report.judgement.why,
    }
    data["concerns"] = [asdict(concern) for concern in report.judgement.concerns]
    data["snapshots"] = [asdict(snapshot) for snapshot in report.snapshots]
    comparison = report.comparison
    data["comparison"] = comparison and {
        "base": comparison.base.name,
        "new": comparison.new.name,
        "end_bytes": comparison.end_bytes,
        "peak_bytes": comparison.peak_bytes,
        "reserved_bytes": comparison.reserved_bytes,
        "sites": [asdict(site) for site in comparison.sites],
    }
    return json.dumps(data, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


_SITES_SHOWN = 12
"""Places at the most, chosen, of one device."""


def texts(reports: Sequence[SnapshotReport]) -> list[str]:
    """The verdict on each snapshot that was analysed, and how to read it in full."""
    return [f"snapshot {report.name}: {_verdict(report)}" for report in reports]


def on_page(reports: Sequence[SnapshotReport]) -> list[tuple[str, str, list[tuple[object, ...]]]]:
    """(name, verdict, [(curves, facts, failures, places) of each device]) of each."""
    return [
        (report.name, _verdict(report), [_device_of_files(report, d) for d in report.devices]) for report in reports
    ]


def _device_of_files(report: SnapshotReport, device: DeviceReport) -> tuple[object, ...]:
    return _device_chart(report, device), facts(device), failure_lines(device), device.end_sites[:_SITES_SHOWN]


def _verdict(report: SnapshotReport) -> str:
    return verdict_line(SnapshotsReport((report,), judge_snapshots([report])))
