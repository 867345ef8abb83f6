"""Text, HTML and JSON of a memory snapshot."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.memory_snapshot.analysis import DeviceReport, SnapshotReport, Timeline
from leakscope.memory_snapshot.peak import Category
from leakscope.memory_snapshot.sites import SiteBytes
from leakscope.memory_snapshot.verdict import Comparison, SnapshotsReport, judge_snapshots
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
from leakscope.units import bytes_text, seconds_text

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


_STRETCHES = 4
"""Stretches that the ticks of an axis mark off."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 860, 270, 90, 30, 20, 10
_ROW, _LETTER = 18, 6
"""Height of a row of the legend, and width of a letter in it at the most, in pixels."""
_COLOURS = (
    "light-dark(#2563ab, #82b1ff)", "light-dark(#c2410c, #f59e6b)", "light-dark(#15803d, #6fd3a1)",
    "light-dark(#7e22ce, #c79bf2)", "light-dark(#a16207, #f0bf5e)", "light-dark(#0e7490, #5ecbe0)",
    "light-dark(#be185d, #f58ab8)", "light-dark(#4b5563, #9aa7b8)",
)  # fmt: skip
"""In a light and in a dark page."""
_KINDS = dict(zip(map(str, Category), (*_COLOURS[1:7], _COLOURS[7]), strict=True))
"""Of each category; what is unknown is grey."""
_OPACITY = 0.45
_CLOSE = 130
"""Pixels between two moments below which they share a text."""
_INK, _FAINT, _RULE = "light-dark(#111827, #e4e9f0)", "light-dark(#4b5563, #9aa7b8)", "light-dark(#e5e7eb, #323b47)"
_RESERVED, _FAILURE = "light-dark(#9ca3af, #8390a3)", "light-dark(#b91c1c, #ff8a7d)"


@dataclass(frozen=True)
class Curve:
    """One line of the plot."""

    label: str
    timeline: Timeline


@dataclass(frozen=True)
class Mark:
    """A moment to point at."""

    event: int
    text: str
    colour: str


def one_device(label: str, device: DeviceReport) -> Markup | None:
    """Bytes alive, by kind, and reserved after each event, with the peak and the failures pointed at; None without a
    history.

    Over events and not over time: a training waits for long and then allocates a thousand times in a millisecond. The
    numbers are those that `--at` takes.
    """
    line = device.timeline
    if not line.at:
        return None
    widest, highest = max(line.event[-1], 1), max(*line.alive, *line.reserved, 1)
    marks = [Mark(device.peak_event, f"peak {bytes_text(device.peak_bytes)}", _COLOURS[0])]
    marks += [Mark(failure.event, "out of memory", _FAILURE) for failure in device.out_of_memory]
    drawn = [
        *_areas(line, widest, highest),
        _line(line.event, line.alive, widest, highest, _COLOURS[0], ""),
        _line(line.event, line.reserved, widest, highest, _RESERVED, "5 4"),
        *_marked(marks, widest),
    ]
    rows = [(f"{label}: alive", _COLOURS[0], 1.0), ("reserved", _RESERVED, 1.0)]
    rows += [(kind, _KINDS[kind], _OPACITY) for kind in reversed(tuple(line.categories))]
    rows += [("(kinds are judged from stacks and life spans)", "none", 0.0)] if line.categories else []
    return _svg(_axes(widest, highest, _event_texts(line, widest)), drawn, rows, "memory after each event")


def together(curves: Sequence[Curve]) -> Markup | None:
    """Bytes alive of several snapshots on one axis: seconds where each has times, otherwise points; None when no curve
    has one.
    """
    curves = [curve for curve in curves if curve.timeline.at]
    if not curves:
        return None
    clock = all(curve.timeline.clock for curve in curves)
    places = [curve.timeline.at if clock else tuple(map(float, range(len(curve.timeline.at)))) for curve in curves]
    widest = max(max(place) for place in places) or 1.0
    highest = max(max(curve.timeline.alive) for curve in curves) or 1
    colours = [_COLOURS[index % len(_COLOURS)] for index in range(len(curves))]
    drawn = [
        _line(place, curve.timeline.alive, widest, highest, colour, "")
        for curve, place, colour in zip(curves, places, colours, strict=True)
    ]
    ticks = [widest * step / _STRETCHES for step in range(_STRETCHES + 1)]
    texts = [seconds_text(at) if clock else f"{at:.0f}" for at in ticks]
    rows = [(curve.label, colour, 1.0) for curve, colour in zip(curves, colours, strict=True)]
    return _svg(_axes(widest, highest, texts), drawn, rows, "memory over time")


def _svg(axes: Sequence[str], drawn: Sequence[str], rows: Sequence[tuple[str, str, float]], name: str) -> Markup:
    from markupsafe import Markup

    legend, height = _legend(rows)
    return Markup(
        f'<div class="scroll" tabindex="0" role="group" aria-label="{name}, to scroll">'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}" '
        f'font-family="sans-serif" font-size="11">{"".join([*axes, *drawn, *legend])}</svg></div>'
    )


def _event_texts(line: Timeline, widest: float) -> list[str]:
    """`event 2825` and, where there is a clock, how far into the trace that is."""
    texts = []
    for step in range(_STRETCHES + 1):
        event = round(widest * step / _STRETCHES)
        nearest = min(bisect_left(line.event, event), len(line.event) - 1)
        texts.append(f"event {event}" + (f", {seconds_text(line.at[nearest])}" if line.clock else ""))
    return texts


def _marked(marks: Sequence[Mark], widest: float) -> list[str]:
    """A line for each, and a text for those that stand close together."""
    parts = []
    groups: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda mark: mark.event):
        x = _x(mark.event, widest)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" style="stroke: {mark.colour}" '
            'stroke-width="1" stroke-dasharray="2 3"/>'
        )
        if groups and x - _x(groups[-1][0].event, widest) < _CLOSE:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    for group in groups:
        counts = Counter(mark.text for mark in group)
        text = ", ".join(f"{text} ({count} times)" if count > 1 else text for text, count in counts.items())
        anchor, by = ("end", -5) if group[0].event > widest / 2 else ("start", 5)
        x = _x(group[0].event, widest) + by
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 5}" text-anchor="{anchor}" style="fill: {_INK}">{text}</text>')
    return parts


def _x(at: float, widest: float) -> float:
    return _LEFT + at / widest * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, highest: float) -> float:
    return _HEIGHT - _BOTTOM - value / highest * (_HEIGHT - _BOTTOM - _TOP)


def _line(
    place: Sequence[float], values: Sequence[int], widest: float, highest: float, colour: str, dashes: str
) -> str:
    points = " ".join(f"{_x(at, widest):.1f},{_y(value, highest):.1f}" for at, value in zip(place, values, strict=True))
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{points}" fill="none" style="stroke: {colour}" stroke-width="1.5"{dashed}/>'


def _areas(line: Timeline, widest: float, highest: float) -> list[str]:
    """What is alive, by category, one upon the other."""
    lower = [0] * len(line.event)
    drawn = []
    for kind, values in line.categories.items():
        upper = [below + more for below, more in zip(lower, values, strict=True)]
        there, back = zip(line.event, upper, strict=True), zip(reversed(line.event), reversed(lower), strict=True)
        points = " ".join(f"{_x(at, widest):.1f},{_y(value, highest):.1f}" for at, value in (*there, *back))
        drawn.append(f'<polygon points="{points}" style="fill: {_KINDS[kind]}" fill-opacity="{_OPACITY}"/>')
        lower = upper
    return drawn


def _axes(widest: float, highest: float, texts: Sequence[str]) -> list[str]:
    """The lines of round shares of the highest value, and `texts` below at as many places."""
    parts = []
    for step, text in enumerate(texts):
        value, y = highest * step / _STRETCHES, _y(highest * step / _STRETCHES, highest)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" style="stroke: {_RULE}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" style="fill: {_FAINT}">{bytes_text(value)}</text>'
        )
        anchor = "start" if step == 0 else "end" if step == _STRETCHES else "middle"
        parts.append(
            f'<text x="{_x(widest * step / _STRETCHES, widest):.1f}" y="{_HEIGHT - 12}" text-anchor="{anchor}" '
            f'style="fill: {_FAINT}">{text}</text>'
        )
    return parts


def _legend(rows: Sequence[tuple[str, str, float]]) -> tuple[list[str], int]:
    """A swatch and a text for each (text, colour, opacity), side by side where there is room; and where they end."""
    from markupsafe import escape

    parts, x, y = [], _LEFT, _HEIGHT + 4
    for text, colour, opacity in rows:
        width = 40 + _LETTER * len(text)
        if x > _LEFT and x + width > _WIDTH:
            x, y = _LEFT, y + _ROW
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="14" height="9" style="fill: {colour}" fill-opacity="{opacity}"/>'
            f'<text x="{x + 20}" y="{y}" style="fill: {_INK}">{escape(text)}</text>'
        )
        x += width
    return parts, y + _ROW


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
    return one_device(title(report), device), facts(device), failure_lines(device), device.end_sites[:_SITES_SHOWN]


def _verdict(report: SnapshotReport) -> str:
    return verdict_line(SnapshotsReport((report,), judge_snapshots([report])))
