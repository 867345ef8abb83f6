"""A plot with steps along the bottom and memory up the side, as SVG that takes its colours and font from the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

WIDTH, HEIGHT = 417.6, 187.2
"""Of the drawing, in units of the page's 10 px text; the page scales it to its column."""
_TOP, _BOTTOM, _RIGHT = 10.8, 148.9, 400.4
_CHARACTER = 6.4
"""Width of a digit at the most, in the same units."""
_LABEL = 28.0
"""Left of the numbers: the name of the axis, turned, and the gaps."""
_NICE = (1.0, 2.0, 2.5, 5.0)
"""Between two ticks, times a power of ten."""
_MOST_ACROSS, _MOST_UP = 10, 6
"""Stretches that the ticks of an axis mark off, at the most."""
_MARGIN = 0.05
"""Of the range of the values, above them and below."""

Point = tuple[float, float]
"""(step, value) as it was measured."""


@dataclass(frozen=True)
class Axes:
    """Where steps and values come to lie."""

    first: int
    last: int
    """Steps at the left and at the right edge."""
    low: float
    high: float
    """Values at the bottom and at the top edge."""

    @cached_property
    def left(self) -> float:
        """The left edge: right of the widest number."""
        return _LABEL + _CHARACTER * max(len(text) for _, text in self.ticks_up())

    def x(self, step: float) -> float:
        """How far from the left a step is."""
        return self.left + (step - self.first) / (self.last - self.first) * (_RIGHT - self.left)

    def y(self, value: float) -> float:
        """How far from the top a value is."""
        return _BOTTOM - (value - self.low) / (self.high - self.low) * (_BOTTOM - _TOP)

    def ticks_across(self) -> Iterator[tuple[float, str]]:
        """Steps with their numbers; no more of them than find room beside each other."""
        room = (_RIGHT - _LABEL) / (_CHARACTER * (len(str(self.last)) + 2))
        return _ticks(
            self.first, self.last, _stretch(self.last - self.first, min(_MOST_ACROSS, int(room) or 1), whole=True)
        )

    def ticks_up(self) -> Iterator[tuple[float, str]]:
        """Values with their numbers."""
        return _ticks(self.low, self.high, _stretch(self.high - self.low, _MOST_UP))


def axes_around(points: Iterable[Point], from_zero: bool = False) -> Axes:
    """Axes that have room for all of them, with a margin above and below, or, `from_zero`, above only."""
    steps, values = zip(*points, strict=True)
    first, last = int(min(steps)), int(max(steps))
    low, high = (0.0 if from_zero else min(values)), max(values)
    if high <= low:
        low, high = (low, low + 1) if from_zero else (low - 1, low + 1)
    margin = _MARGIN * (high - low)
    return Axes(first, max(last, first + 1), low if from_zero else low - margin, high + margin)


def _stretch(span: float, most: int, whole: bool = False) -> float:
    """The smallest nice distance, a whole number where asked, of which at most `most` go into the span."""
    power = 10.0 ** math.floor(math.log10(span / most))
    distances = (nice * power for nice in (*_NICE, 10.0, 20.0))
    return next(size for size in distances if span <= size * most and (not whole or size.is_integer()))


def _ticks(low: float, high: float, step: float) -> Iterator[tuple[float, str]]:
    decimals = max(0, 1 - math.floor(math.log10(step)))
    while decimals and round(step, decimals - 1) == step:
        decimals -= 1
    for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        text = f"{abs(number) * step:.{decimals}f}"
        yield number * step, f"−{text}" if number < 0 else text  # noqa: RUF001 - a minus sign is what is set there


def plot(axes: Axes, name: str, *, below: Iterable[str] = (), above: Iterable[str] = ()) -> str:
    """The `<svg>`: numbers, `name` of the axis of values, and the grid with what is drawn below and above it."""
    middle, left = (_TOP + _BOTTOM) / 2, axes.left
    parts = [f'<svg class="plot" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg">', *below]
    for value, text in axes.ticks_up():
        y = axes.y(value)
        parts.append(f'<path class="grid" d="M{left:.1f},{y:.1f}H{_RIGHT}"/>')
        parts.append(f'<text x="{left - 4:.1f}" y="{y + 3.6:.1f}" text-anchor="end">{text}</text>')
    for step, text in axes.ticks_across():
        parts.append(f'<text x="{axes.x(step):.1f}" y="{_BOTTOM + 11:.1f}" text-anchor="middle">{text}</text>')
    parts.append(f'<path class="foot" d="M{left:.1f},{_BOTTOM}H{_RIGHT}"/>')
    across = (left + _RIGHT) / 2
    parts.append(f'<text x="{across:.1f}" y="{_BOTTOM + 25:.1f}" text-anchor="middle">step</text>')
    turned = f'transform="translate(16 {middle:.1f}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(name)}</text>')
    return "".join([*parts, *above, "</svg>"])


def line(axes: Axes, points: Sequence[Point], series: int, dashed: bool = False) -> str:
    """A line through the points, in the colour of that number; "" where there are none."""
    if not points:
        return ""
    dashes = ' stroke-dasharray="6.7 2.9"' if dashed else ""
    course = _course(axes, thinned(points))
    return f'<path class="line" d="M{course}" style="stroke: var(--series-{series})"{dashes}/>'


def dots(axes: Axes, points: Sequence[Point], series: int) -> str:
    """A dot at each point."""
    return "".join(
        f'<circle cx="{axes.x(step):.1f}" cy="{axes.y(value):.1f}" r="3" style="fill: var(--series-{series})"/>'
        for step, value in points
    )


def upright(axes: Axes, step: float, series: int) -> str:
    """A dotted line at a step, from the bottom to the top."""
    x = axes.x(step)
    colour = f'style="stroke: var(--series-{series})"'
    return f'<path class="upright" d="M{x:.1f},{_BOTTOM}V{_TOP}" {colour} stroke-dasharray="0.8 1.3"/>'


def area(axes: Axes, lower: Sequence[Point], upper: Sequence[Point], series: int) -> str:
    """What lies between two lines."""
    course = f"{_course(axes, upper)} {_course(axes, lower[::-1])}"
    return f'<path d="M{course}Z" style="fill: var(--series-{series})"/>'


def _course(axes: Axes, points: Sequence[Point]) -> str:
    return " ".join(f"{axes.x(step):.1f},{axes.y(value):.1f}" for step, value in points)


def thinned(points: Sequence[Point], columns: int = int(WIDTH)) -> Sequence[Point]:
    """What is seen of more points than the drawing has room for: of each column the first, lowest, highest and last."""
    if len(points) <= 4 * columns:
        return points
    size = math.ceil(len(points) / columns)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        column = range(start, min(start + size, len(points)))
        low, high = (end(column, key=lambda place: points[place][1]) for end in (min, max))
        kept += [points[place] for place in sorted({column[0], low, high, column[-1]})]
    return kept
