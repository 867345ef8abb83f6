"""How did memory run? One snapshot over its events, or several over time, as inline SVG."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.allocator.figures import DeviceReport, Timeline
from leakscope.allocator.moment.categories import Category
from leakscope.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from markupsafe import Markup

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
