"""Memory over steps, drawn with matplotlib as SVG that takes its colours from the page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leakscope.findings.model import RankSummary
from leakscope.record.kinds import Occasion
from leakscope.record.model import Rank
from leakscope.report.per_rank import counted_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (5.8, 2.6)
"""Inches; the page scales the drawing to its column."""

MIN_POINTS = 2
"""Steps that make a line."""

MAX_COLLECTIONS = 200
"""Full collections that are drawn, the first ones: more would be a grey field."""

OLDEST = 2
"""The generation that a full collection collects (CPython `gc.collect()`)."""

COUNTED, EXPLAINED, PEAK = 1, 4, 3
"""Numbers, among the page's colours, of what the allocator has out, of the storages found and of the peak."""

SERIES = 10
"""Colours that the page defines as `--series-1` to `--series-10`; the last is for what leaked."""

_INK, _GRID = "#010101", "#020202"
_PLACEHOLDERS = {
    _INK: "var(--ink)",
    _GRID: "var(--rule)",
    **{f"#0300{n:02x}": f"var(--series-{n})" for n in range(1, SERIES + 1)},
}

_KNOWN = (
    "parameter", "buffer", "optimizer", "gradient", "activation", "input", "p2p", "held by a named", "held by native",
    "leaked",
)  # fmt: skip
"""Beginnings of the categories' names, from the bottom of the stack to its top."""


def category_series(names: Sequence[str]) -> dict[str, int]:
    """Each category's number among the page's colours, in the order in which they are stacked."""
    numbers: dict[str, int] = {}
    for name in sorted(names):
        known = next((i for i, start in enumerate(_KNOWN, 1) if name.lower().startswith(start)), None)
        if known is not None:
            numbers[name] = known
    free = [number for number in range(1, SERIES) if number not in numbers.values()] or [SERIES - 2]
    for place, name in enumerate(sorted(set(names) - set(numbers))):
        numbers[name] = free[-1 - place % len(free)]
    return dict(sorted(numbers.items(), key=lambda item: (item[1], item[0])))


def categories_shown(summary: RankSummary) -> list[str]:
    """Names of the categories that held anything at any look."""
    looks = [summary.categories, *(sizes for _, sizes in summary.categories_by_step)]
    return sorted({name for sizes in looks for name, size in sizes.items() if size})


def memory_plot(rank: Rank, absolute: bool) -> str:
    """Counted bytes of one rank over its steps, the bytes explained at each look, and the program's full collections.

    `absolute`: the counted bytes are tensor memory (an accelerator's); otherwise only their growth means anything.
    Returns "" where fewer than two steps were counted.
    """
    counted = counted_steps(rank)
    if len(counted) < MIN_POINTS:
        return ""
    base = 0 if absolute else counted[0][1]
    explained = [
        (look.step, look.explained_bytes) for look in rank.looks if look.occasion in (Occasion.STEP, Occasion.LAST)
    ]
    first = 0 if absolute or not explained else explained[0][1]
    looks = [(step, size - first) for step, size in explained]
    peaks = [(s.number, s.peak_bytes) for s in rank.steps if s.peak_bytes is not None] if absolute else []
    if peaks:  # noted where it rose
        peaks.append((counted[-1][0], peaks[-1][1]))
    lines = [[(n, b - base) for n, b in counted], looks, peaks]
    unit, name = _unit(max(abs(b) for line in lines for _, b in line))
    with _figure(f"memory of rank {rank.number}") as (figure, axes):
        for line, series, style in zip(lines, (COUNTED, EXPLAINED, PEAK), ("-", "", "--"), strict=True):
            if line:
                axes.plot(
                    [n for n, _ in line],
                    [b / unit for _, b in line],
                    style,
                    color=_series(series),
                    marker="o" if series == EXPLAINED else None,
                    markersize=5,
                    linewidth=1.8,
                    clip_on=False,
                )
        full = [s.number for s in rank.steps if any(c.generation == OLDEST for c in s.collections)]
        for step in full[:MAX_COLLECTIONS]:
            axes.axvline(step, color=_series(PEAK), linewidth=0.8, linestyle=":")
        axes.set_ylabel(f"memory, {name}" if absolute else f"growth, {name}")
        axes.set_xlim(counted[0][0], max(counted[-1][0], *(n for n, _ in looks)) if looks else counted[-1][0])
        return _svg(figure)


def categories_plot(number: int, summary: RankSummary) -> str:
    """Bytes of rank `number` by category at each look, stacked; "" where looks at fewer than two steps were sorted."""
    looks: Sequence[tuple[int, Mapping[str, int]]] = summary.categories_by_step
    if len({step for step, _ in looks}) < MIN_POINTS or not categories_shown(summary):
        return ""
    series = category_series(categories_shown(summary))
    unit, name = _unit(max(sum(sizes.values()) for _, sizes in looks))
    layers = [[sizes.get(category, 0) / unit for _, sizes in looks] for category in series]
    with _figure(f"categories of rank {number}") as (figure, axes):
        axes.stackplot([step for step, _ in looks], layers, colors=[_series(n) for n in series.values()])
        axes.set_ylabel(f"storages found, {name}")
        axes.set_xlim(looks[0][0], looks[-1][0])
        axes.set_ylim(bottom=0)
        return _svg(figure)


def _series(number: int) -> str:
    return f"#0300{number:02x}"


def _unit(largest: float) -> tuple[float, str]:
    units = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
    return next(((size, name) for size, name in units if largest >= size), (1.0, "bytes"))


def load() -> None:
    """Import the parts of matplotlib that draw."""
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401


@contextmanager
def _figure(salt: str) -> Iterator[tuple[Figure, Axes]]:
    """A figure of its own, outside pyplot, under matplotlib's default style whatever the user's matplotlibrc says.

    `salt` makes the ids inside the drawing its own, and the same each time.
    """
    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # as matplotlib.style's "default", without importing all other styles; the backend that was chosen stays
    default = {str(name): value for name, value in dict.items(rcParamsDefault) if name != "backend"}
    settings: dict[Any, Any] = default | {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "text.parse_math": False,
        "font.size": 10.0,
        "text.color": _INK,
        "axes.edgecolor": _GRID,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _GRID,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
    }
    with rc_context(settings):
        figure = Figure(figsize=SIZE)
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")
        axes.grid(True, axis="y", linewidth=0.6)
        axes.tick_params(length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        yield figure, axes


_NUMBERED = r"figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|FillBetweenPolyCollection|LineCollection"
"""Groups that matplotlib gives an id: several drawings on one page would repeat them."""


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    # `savefig` would draw all of it twice, and find the same margins twice
    figure.tight_layout()
    canvas: Any = figure.canvas
    canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(rf' id="(?:{_NUMBERED})_\d+"', "", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[\d.]+pt"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[\d.]+pt"', r"\1", text, count=1)
    for placeholder, colour in _PLACEHOLDERS.items():
        text = text.replace(placeholder, colour)
    return text.replace("<svg", '<svg class="plot" role="img"', 1)
