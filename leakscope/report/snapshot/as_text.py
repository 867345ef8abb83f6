"""What a memory snapshot says, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.allocator.figures import DeviceReport, SnapshotReport
from leakscope.allocator.judging import Comparison, SnapshotsReport
from leakscope.allocator.sites import SiteBytes
from leakscope.report.cleaning import cleaned, one_line
from leakscope.report.snapshot.wording import (
    concern_text,
    each_kind_text,
    facts,
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
