"""How did memory run over time? Curves of one or more snapshots on one axis, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.allocator.figures import Timeline
from leakscope.allocator.moment.categories import Category
from leakscope.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from markupsafe import Markup

_STRETCHES = 4
"""Stretches that the ticks of an axis mark off."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 860, 260, 90, 30, 10, 10
_COLOURS = (
    "light-dark(#2563ab, #82b1ff)", "light-dark(#c2410c, #f59e6b)", "light-dark(#15803d, #6fd3a1)",
    "light-dark(#7e22ce, #c79bf2)", "light-dark(#a16207, #f0bf5e)", "light-dark(#0e7490, #5ecbe0)",
    "light-dark(#be185d, #f58ab8)", "light-dark(#4b5563, #9aa7b8)",
)  # fmt: skip
"""In a light and in a dark page."""
_KINDS = dict(zip(map(str, Category), (*_COLOURS[1:7], _COLOURS[7]), strict=True))
"""Of each category; what is unknown is grey."""
_INK, _FAINT, _RULE = "light-dark(#111827, #e4e9f0)", "light-dark(#4b5563, #9aa7b8)", "light-dark(#e5e7eb, #323b47)"
_RESERVED, _FAILURE = "light-dark(#9ca3af, #8390a3)", "light-dark(#b91c1c, #ff8a7d)"


@dataclass(frozen=True)
class Curve:
    """One line of the plot."""

    label: str
    timeline: Timeline


def memory_curves(curves: Sequence[Curve], failures: Sequence[float] = ()) -> Markup | None:
    """Bytes alive (solid) and, for a single curve, reserved (dashed) over the time since each trace began.

    With several curves all share one axis: seconds when each has times, otherwise events. `failures` are marked
    places on that axis. None when no curve has a point.
    """
    from markupsafe import Markup, escape

    curves = [curve for curve in curves if curve.timeline.at]
    if not curves:
        return None
    clock = all(curve.timeline.clock for curve in curves)
    places = [
        curve.timeline.at if clock == curve.timeline.clock else tuple(map(float, range(len(curve.timeline.at))))
        for curve in curves
    ]
    widest = max(max(place) for place in places) or 1.0
    shows_reserved = len(curves) == 1
    highest = (
        max(max(curve.timeline.alive + (curve.timeline.reserved if shows_reserved else ())) for curve in curves) or 1
    )
    lines = []
    for index, (curve, place) in enumerate(zip(curves, places, strict=True)):
        colour = _COLOURS[index % len(_COLOURS)]
        lines.append(_line(place, curve.timeline.alive, widest, highest, colour, ""))
        if shows_reserved:
            lines += _areas(place, curve.timeline, widest, highest)
            lines.append(_line(place, curve.timeline.reserved, widest, highest, _RESERVED, "5 4"))
    for at in failures:
        x = _x(at, widest)
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" '
            f'style="stroke: {_FAILURE}" stroke-width="1.5"/>'
        )
    labels = [str(escape(curve.label)) for curve in curves]
    kinds = tuple(curves[0].timeline.categories) if shows_reserved else ()
    legend = _legend(labels, kinds, shows_reserved)
    drawing = "".join([*_axes(widest, highest, clock), *lines, *legend])
    height = _HEIGHT + 18 * len(legend) // 2
    return Markup(
        f'<div class="scroll" tabindex="0" role="group" aria-label="Memory over time, to scroll">'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="memory over time" '
        f'font-family="sans-serif" font-size="11">{drawing}</svg></div>'
    )


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


def _areas(place: Sequence[float], timeline: Timeline, widest: float, highest: float) -> list[str]:
    """What is alive, by category, one upon the other."""
    lower = [0] * len(place)
    drawn = []
    for kind, values in timeline.categories.items():
        upper = [below + more for below, more in zip(lower, values, strict=True)]
        there, back = zip(place, upper, strict=True), zip(reversed(place), reversed(lower), strict=True)
        points = " ".join(f"{_x(at, widest):.1f},{_y(value, highest):.1f}" for at, value in (*there, *back))
        drawn.append(f'<polygon points="{points}" style="fill: {_KINDS[kind]}" fill-opacity="0.35"/>')
        lower = upper
    return drawn


def _axes(widest: float, highest: float, clock: bool) -> list[str]:
    parts = []
    for step in range(_STRETCHES + 1):
        value, y = highest * step / _STRETCHES, _y(highest * step / _STRETCHES, highest)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" style="stroke: {_RULE}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" style="fill: {_FAINT}">{bytes_text(value)}</text>'
        )
        at = widest * step / _STRETCHES
        text = seconds_text(at) if clock else f"{at:.0f}"
        anchor = "start" if step == 0 else "end" if step == _STRETCHES else "middle"
        parts.append(
            f'<text x="{_x(at, widest):.1f}" y="{_HEIGHT - 12}" text-anchor="{anchor}" '
            f'style="fill: {_FAINT}">{text}</text>'
        )
    return parts


def _legend(labels: Sequence[str], kinds: Sequence[str], shows_reserved: bool) -> list[str]:
    rows = [(label, _COLOURS[index % len(_COLOURS)]) for index, label in enumerate(labels)]
    if shows_reserved:
        rows = [(f"{labels[0]}: alive", _COLOURS[0]), ("reserved", _RESERVED)]
        rows += [(f"{kind}, as judged from stacks and life spans", _KINDS[kind]) for kind in reversed(kinds)]
    parts = []
    for index, (label, colour) in enumerate(rows):
        y = _HEIGHT + 18 * index + 4
        parts.append(f'<rect x="{_LEFT}" y="{y - 8}" width="14" height="4" style="fill: {colour}"/>')
        parts.append(f'<text x="{_LEFT + 20}" y="{y}" style="fill: {_INK}">{label}</text>')
    return parts
