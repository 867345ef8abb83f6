"""The looks as points of a chart: each is reached by pointer and by Tab, and says its figures."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from leakscope.report.html.memory import LookDot, RankMemory
from leakscope.units import bytes_text

Place = tuple[float, float]
"""(x, y) in the drawing."""
_LINE = 15
"""Height of a line of text in the drawing."""
_LOWEST = 110.0
"""Where text begins at the lowest: below it four lines find room, in the larger letters of a narrow screen too."""


def dots(memory: RankMemory, number: int, place: Callable[[float, float], Place], absolute: bool) -> str:
    """The looks of one rank, the N-th that can be chosen, as focusable points of SVG."""
    parts = [f'<g class="of of-{number}">']
    middle = (memory.looks[0].step + memory.looks[-1].step) / 2 if memory.looks else 0
    for dot in memory.read:
        x, y = place(dot.step, dot.bytes)
        lines = (f"step {dot.step}", *_figures(memory, dot, absolute))
        told = escape(", ".join((f"rank {memory.number}, step {dot.step}", *lines[1:])))
        beside, anchor = (x - 8, "end") if dot.step > middle else (x + 8, "start")
        top = min(max(y - 2 * _LINE, 0), _LOWEST)
        text = "".join(f'<tspan x="{beside:.1f}" dy="1.25em">{escape(line)}</tspan>' for line in lines)
        parts.append(
            f'<g class="point" tabindex="0" role="img" aria-label="{told}"><circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            f'<text y="{top:.1f}" text-anchor="{anchor}" aria-hidden="true">{text}</text></g>'
        )
    return "".join(parts) + "</g>"


def _figures(memory: RankMemory, dot: LookDot, absolute: bool) -> tuple[str, ...]:
    """`counted +9.17 MiB`, `in tensors 12.40 MiB`, `with the cut 8.00 MiB less`."""
    sign = "" if absolute else "+"
    what = "counted" if memory.is_counted else "in tensors"
    figures = [f"{what} {_signed(dot.bytes, sign)}"]
    if memory.is_counted:
        figures.append(f"in tensors {bytes_text(dot.explained)}")
    if dot.freed is not None:
        figures.append(f"with the {'cut' if memory.cuts == 1 else 'cuts'} {bytes_text(dot.freed)} less")
    return tuple(figures)


def _signed(size: float, sign: str) -> str:
    return f"{sign if size >= 0 else ''}{bytes_text(size)}"
