"""How did the bytes of a finding go from look to look, as a line in the head of its card?"""

from __future__ import annotations

from collections.abc import Iterable

from leakscope.findings.model import Sighting
from leakscope.units import bytes_text

WIDTH, HEIGHT, MARGIN = 150, 40, 4
"""Of the drawing, in px."""
MIN_POINTS = 2
"""Looks that make a line."""


def bytes_by_step(sightings: Iterable[Sighting]) -> tuple[tuple[int, int], ...]:
    """(step, bytes of all ranks together), in order; a rank that did not see it at a step holds what it saw before."""
    seen = sorted(sightings, key=lambda sighting: (sighting.step, sighting.rank))
    held: dict[int, int] = {}
    together: dict[int, int] = {}
    for sighting in seen:
        held[sighting.rank] = sighting.bytes
        together[sighting.step] = sum(held.values())
    return tuple(together.items())


def sparkline(points: tuple[tuple[int, int], ...]) -> str:
    """One `<svg>` of (step, bytes), from 0 bytes at its lower edge, each point a dot; "" where there is no line."""
    if len(points) < MIN_POINTS:
        return ""
    first, last = points[0][0], points[-1][0]
    most = max(size for _, size in points) or 1
    wide, high = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    places = [
        (MARGIN + wide * (step - first) / (last - first), MARGIN + high * (1 - max(size, 0) / most))
        for step, size in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    floor = HEIGHT - MARGIN
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in places)
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{spoken(points)}" xmlns="http://www.w3.org/2000/svg">'
        f'<polygon points="{places[0][0]:.1f},{floor} {line} {places[-1][0]:.1f},{floor}"/>'
        f'<polyline points="{line}"/>{dots}</svg>'
    )


def spoken(points: tuple[tuple[int, int], ...]) -> str:
    """`Bytes at each look: 6.00 MiB at step 3, 72.00 MiB at step 12`: the same in words."""
    return "Bytes at each look: " + ", ".join(f"{bytes_text(size)} at step {step}" for step, size in points)
