"""The one chart of memory, drawn with matplotlib as SVG that takes its colours from the page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leakscope.findings.ledger import LineKind
from leakscope.report.html.memory import Layer, Points, RankMemory
from leakscope.report.html.points import Place, dots
from leakscope.report.wording import listed_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 640, 220
"""Of the drawing, in points of 1/72 inch; the page scales it to its column."""
MAX_COLLECTIONS = 200
"""Full collections that are drawn, the first ones: more would be a grey field."""
SERIES = 10
"""Colours that the page defines as `--series-1` to `--series-10`."""
LEAKS = (10, 4, 3, 7, 2)
"""Numbers of the colours of leaks, the largest first."""
KINDS = {
    LineKind.LIBRARY: 9,
    LineKind.BOUND: 5,
    LineKind.GARBAGE: 6,
    LineKind.SLOW: 2,
    LineKind.RESTED: 1,
    LineKind.FOLLOWS: 1,
    LineKind.APART: 9,
    LineKind.OBJECTS: 2,
    LineKind.GRAD_NODES: 7,
    LineKind.BLOCKS: 5,
    LineKind.UNATTRIBUTED: 8,
}
_REST = 8
"""Of several lines together."""
_BESIDE, _NAMES = 12.0, 56.0
"""Points between the names of two lines, at least, and the room that is left for them at the right."""
_NAMED = 3
"""Lines that end at one place, chosen, that are named there."""

_INK, _GRID, _FAINT, _GOOD = "#010101", "#020202", "#040404", "#050505"
_PLACEHOLDERS = {
    _INK: "var(--ink)",
    _GRID: "var(--rule)",
    _FAINT: "var(--faint)",
    _GOOD: "var(--good)",
    **{f"#0300{n:02x}": f"var(--series-{n})" for n in range(1, SERIES + 1)},
}


def layer_colours(layers: Sequence[Layer]) -> tuple[int, ...]:
    """For each line of a ledger its number among the page's colours, each once as long as there are any."""
    found: list[int] = []
    leaks = iter(LEAKS)
    for layer in layers:
        wanted = next(leaks, SERIES) if layer.kind == LineKind.LEAKS else KINDS.get(layer.kind or LineKind.LEAKS, _REST)
        free = [number for number in range(SERIES - 1, 0, -1) if number not in found]
        found.append(wanted if wanted not in found or not free else free[0])
    return tuple(found)


def memory_chart(drawn: Sequence[RankMemory], choices: int, absolute: bool, least: float = 0.0, chosen: int = 1) -> str:
    """All lines on one axis; of each of the first `choices` ranks also what is shown where it is the chosen one.

    That is the ledger's lines, what it would be with the cuts, and its looks.

    What belongs to a choice is of class `of-N`, its line `line-N`, N from 1; the line of `chosen` lies on top. The axis
    spans at least `least` bytes: what is too little to be told must not look like much.
    """
    unit, name = _unit(max(least, *(abs(size) for memory in drawn for points in _all(memory) for _, size in points)))
    with _figure("memory") as (figure, axes):
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g} {name}")
        for number, memory in enumerate(drawn, 1):
            if number <= choices:
                _draw_choice(axes, memory, number, unit)
            above = 3.5 if number == chosen else 3
            _plot(axes, memory.line, unit, gid=f"line line-{number}", color=_FAINT, linewidth=1.2, zorder=above)
        first, last = min(m.line[0][0] for m in drawn), max(_last(memory) for memory in drawn)
        axes.set_xlim(first, last)
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(high, low + least / unit))
        figure.tight_layout(pad=0.3)
        if len(drawn) > 1:
            figure.subplots_adjust(right=1 - _NAMES / WIDTH)

        def place(step: float, size: float) -> Place:
            x, y = axes.transData.transform((step, size / unit))
            return float(x), HEIGHT - float(y)

        names = _names(drawn, place)
        points = "".join(dots(memory, number, place, absolute) for number, memory in enumerate(drawn[:choices], 1))
        return _svg(figure, names + points)


def _all(memory: RankMemory) -> tuple[Points, ...]:
    return memory.line, memory.would_be, memory.peaks, *_stacked(memory)


def _last(memory: RankMemory) -> int:
    return max([memory.line[-1][0], *(dot.step for dot in memory.looks)])


def _plot(axes: Axes, points: Points, unit: float, gid: str, **style: Any) -> None:
    if points:
        (line,) = axes.plot([s for s, _ in points], [size / unit for _, size in points], clip_on=False, **style)
        line.set_gid(gid)


def _draw_choice(axes: Axes, memory: RankMemory, number: int, unit: float) -> None:
    of = f"of of-{number}"
    for layer, colour, (lower, upper) in zip(memory.layers, layer_colours(memory.layers), _edges(memory), strict=True):
        if not layer.is_drawn:
            continue
        area = axes.fill_between(
            [step for step, _ in lower],
            [size / unit for _, size in lower],
            [size / unit for _, size in upper],
            color=_series(colour),
            linewidth=0,
            zorder=1,
        )
        area.set_gid(f"area {of}")
    _plot(axes, memory.peaks, unit, of, color=_series(3), linewidth=1.1, linestyle=":", zorder=2)
    _plot(axes, memory.would_be, unit, f"would {of}", color=_GOOD, linewidth=2.2, linestyle="--", zorder=4)
    if memory.collections:
        lines = axes.vlines(
            memory.collections[:MAX_COLLECTIONS], 0, 1, transform=axes.get_xaxis_transform(), colors=_series(3)
        )
        lines.set(linewidth=0.8, linestyle=":", zorder=0, gid=of)


def _edges(memory: RankMemory) -> list[tuple[Points, Points]]:
    """Lower and upper edge of each layer: what grew stands on what grew before it, what shrank hangs below."""
    steps = [step for step, _ in memory.layers[0].growth] if memory.layers else []
    above, below = [memory.begins] * len(steps), [memory.begins] * len(steps)
    edges = []
    for layer in memory.layers:
        sizes = [size for _, size in layer.growth]
        starts = [above[i] if size >= 0 else below[i] for i, size in enumerate(sizes)]
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        edges.append((tuple(zip(steps, starts, strict=True)), tuple(zip(steps, ends, strict=True))))
        above = [max(a, end) for a, end in zip(above, ends, strict=True)]
        below = [min(b, end) for b, end in zip(below, ends, strict=True)]
    return edges


def _stacked(memory: RankMemory) -> list[Points]:
    drawn = [edges for layer, edges in zip(memory.layers, _edges(memory), strict=True) if layer.is_drawn]
    return [edge for edges in drawn for edge in edges]


def _names(drawn: Sequence[RankMemory], place: Any) -> str:
    """The ranks' numbers at the ends of their lines, together where they meet."""
    if len(drawn) == 1:
        return ""
    ends = sorted(((*place(*memory.line[-1]), memory) for memory in drawn), key=lambda end: end[1])
    groups: list[list[tuple[float, float, RankMemory]]] = []
    for end in ends:
        if groups and end[1] - groups[-1][0][1] < _BESIDE:
            groups[-1].append(end)
        else:
            groups.append([end])
    parts = []
    for group in groups:
        numbers = sorted(memory.number for *_, memory in group)
        more = ", …" if len(numbers) > _NAMED else ""
        x, y = max(x for x, *_ in group), sum(y for _, y, _ in group) / len(group)
        name = listed_numbers(tuple(numbers[:_NAMED])) + more
        parts.append(f'<text class="end" x="{x + 6:.1f}" y="{y + 3.5:.1f}">{name}</text>')
    return "".join(parts)


def _series(number: int) -> str:
    return f"#0300{number:02x}"


def _unit(largest: float) -> tuple[float, str]:
    units = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
    return next(((size, name) for size, name in units if largest >= size), (1.0, "B"))


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
        "font.size": 11.0,
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
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)  # the SVG is in points, as are the overlaid places
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(True, axis="y", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        yield figure, axes


_NUMBERED = r"figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|FillBetweenPolyCollection|LineCollection"
"""Groups that matplotlib gives an id: several drawings on one page would repeat them."""
_OURS = r"line line-\d+|(?:area |would )?of of-\d+"
"""Groups that `set_gid` gave one, which is to be a class."""


def _rounded(tag: re.Match[str]) -> str:
    """A tag with its lengths to a tenth of a point; texts stay as they are."""
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", tag[0])


def _svg(figure: Figure, overlay: str) -> str:
    stream = io.StringIO()
    canvas: Any = figure.canvas
    canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(rf' id="(?:{_NUMBERED})_\d+"', "", text)
    text = re.sub(rf' id="({_OURS})"', r' class="\1"', text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[\d.]+pt"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[\d.]+pt"', r"\1", text, count=1)
    text = re.sub(r"<[^>]+>", _rounded, text)
    for placeholder, colour in _PLACEHOLDERS.items():
        text = text.replace(placeholder, colour)
    text = text.replace("<svg", '<svg class="plot" role="group" aria-label="Memory over the steps"', 1)
    return text.replace("</svg>", f"{overlay}</svg>")
