"""Charts of the HTML pages, drawn by matplotlib as SVG that stands inside the page.

Every chart follows the same rules: text stays text, colours are the page's CSS variables (light, dark and print),
nothing in it has an id, so that any number of charts fit on one page, and the same data gives the same bytes.
"""

from __future__ import annotations

import functools
import io
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from leakscope.findings.model import LineKind
from leakscope.memory_snapshot.peak import Category
from leakscope.units import bytes_text, listed_numbers, seconds_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from leakscope.memory_snapshot.analysis import MemoryTimeline
    from leakscope.report.html.chart_data import Layer, Points, RankMemory, SnapshotDot

SERIES = 10
"""Colours of data that `html/colours.css` defines as `--series-1` to `--series-10`."""
_INK, _RULE, _FAINT, _GOOD, _BAD, _BAD_TINT = (f"#0200{number:02x}" for number in range(6))
_COLOURS = {
    _INK: "var(--ink)",
    _RULE: "var(--rule)",
    _FAINT: "var(--faint)",
    _GOOD: "var(--good)",
    _BAD: "var(--bad)",
    _BAD_TINT: "var(--bad-tint)",
    **{f"#0300{number:02x}": f"var(--series-{number})" for number in range(1, SERIES + 1)},
}
"""Colours in which matplotlib, which does not support CSS variables, draws each colour of the page."""


def _series(number: int) -> str:
    return f"#0300{number:02x}"


def load() -> None:
    """Import the drawing parts of matplotlib."""
    import matplotlib.backends.backend_svg
    import matplotlib.figure
    import matplotlib.legend  # noqa: F401


_PLACEHOLDER = re.compile(r"#0[23]00[0-9a-f]{2}")
_TAG = re.compile(r"<!--.*?-->|<[^>]+>", re.DOTALL)
_DROPPED = re.compile(r' (?:id="[^"]*"|clip-path="[^"]*"|transform="rotate\(-0 [^"]*")|(?<=[" ])font-family: [^;"]*; ')
"""Ids and references to them, null rotations, and fonts, which the page replaces."""
_LENGTH = re.compile(r'(style="[^"]*")|-?\d+\.\d+')


class _Drawing:
    """A figure outside pyplot whose unit is that of the SVG, with named parts."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure: Figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        FigureCanvasSVG(self.figure)
        self.figure.patch.set_visible(False)
        self._groups: dict[str, str] = {}

    def name(self, artist: Artist, classes: str = "", title: str = "") -> None:
        """Give the group of an artist a class and a title, which browsers show as a tooltip."""
        key = f"part-{len(self._groups)}"
        artist.set_gid(key)
        tooltip = f"<title>{escape(title)}</title>" if title else ""
        self._groups[key] = (f'<g class="{classes}">' if classes else "<g>") + tooltip

    def canvas(self) -> Axes:
        """Axes over the whole figure without marks, in SVG units from the top left."""
        axes = self.figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        return axes

    def svg(self, attributes: str, before: str = "", after: str = "") -> str:
        """The SVG element; `before` and `after` enclose what matplotlib drew."""
        stream = io.StringIO()
        canvas: Any = self.figure.canvas
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
        text = stream.getvalue()
        drawn = text[text.index('<g id="figure_1"') : text.rindex("</svg>")]
        drawn = re.sub(r"<defs>\s*<clipPath.*?</defs>", "", drawn, flags=re.DOTALL)
        drawn = re.sub(r">\s+<", "><", _TAG.sub(self._tag, drawn)).strip()
        while drawn != (drawn := drawn.replace("<g></g>", "")):
            pass
        size = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        style = 'font-family="system-ui, sans-serif" font-size="11" stroke-linejoin="round"'
        return f"<svg {attributes} {size} {style}>{before}{drawn}{after}</svg>"

    def _tag(self, found: re.Match[str]) -> str:
        tag = found[0]
        if tag.startswith(("<!--", "<g ")):
            named = re.match(r'<g id="([^"]*)"', tag)
            group = self._groups.get(named[1], "<g>") if named else "" if tag.startswith("<!--") else tag
            return f"{group}</g>" if tag.endswith("/>") and group else group
        tag = _DROPPED.sub("", re.sub(r"\s+", " ", tag))
        tag = _LENGTH.sub(lambda length: length[1] or f"{float(length[0]):.1f}".removesuffix(".0"), tag)
        return _PLACEHOLDER.sub(lambda colour: _COLOURS[colour[0]], tag)


@functools.cache
def _settings() -> dict[Any, Any]:
    """Matplotlib's default style, whatever the user's matplotlibrc contains, without importing other styles.

    The chosen backend is kept.
    """
    from matplotlib import rcParamsDefault

    default = {str(name): value for name, value in dict.items(rcParamsDefault) if name != "backend"}
    colours = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    return default | {
        "svg.fonttype": "none",
        "svg.hashsalt": "leakscope",
        "text.parse_math": False,
        "font.family": ["DejaVu Sans"],  # comes with matplotlib, so that lengths are the same on every machine
        "font.size": 11.0,
        **dict.fromkeys(colours, _INK),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), _RULE),
        **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    }


@contextmanager
def _drawing(width: float, height: float) -> Iterator[_Drawing]:
    """A new drawing; inside the block matplotlib's settings are ours.

    The backend reads `svg.fonttype` and `svg.hashsalt` from the global settings, so these are restored afterwards.
    """
    from matplotlib import rc_context

    with rc_context(_settings()):
        yield _Drawing(width, height)


# Memory over the steps

WIDTH, HEIGHT = 640, 220
"""Size of the chart in px; the page scales it to its column."""
MAX_COLLECTIONS = 200
"""Maximum full collections drawn; more would be a grey area."""
LEAKS = (10, 4, 3, 7, 2)
"""Colour numbers of leaks, the largest first."""
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
"""Colour of several lines together."""
_BESIDE, _NAMES = 12.0, 56.0
"""Minimum px between the names of two lines, and px reserved for names at the right."""
_NAMED = 3
"""Maximum ranks named where several lines end at one place."""
_LINE = 15
"""Height of a line of text, in px."""
_LOWEST = 110.0
"""Baseline of the lowest text: four lines fit below it, also in the larger letters of a narrow screen."""

Place = Callable[[float, float], tuple[float, float]]
"""(x, y) in the SVG for a step and bytes."""


def layer_colours(layers: Sequence[Layer]) -> tuple[int, ...]:
    """For each line of a growth breakdown its colour number; distinct as long as there are enough."""
    found: list[int] = []
    leaks = iter(LEAKS)
    for layer in layers:
        wanted = next(leaks, SERIES) if layer.kind == LineKind.LEAKS else KINDS.get(layer.kind or LineKind.LEAKS, _REST)
        free = [number for number in range(SERIES - 1, 0, -1) if number not in found]
        found.append(wanted if wanted not in found or not free else free[0])
    return tuple(found)


def memory_chart(drawn: Sequence[RankMemory], choices: int, absolute: bool, least: float = 0.0, chosen: int = 1) -> str:
    """Memory of each rank over the steps, all lines on one axis.

    Each of the first `choices` ranks also has the lines of its growth breakdown, its memory had the cuts been made, and
    its snapshots. Elements of such a choice have the class `of-N`, its line `line-N`, N from 1.

    `absolute` says whether the bytes are tensor memory rather than growth. The axis spans at least `least` bytes, so
    that noise does not look like growth. The line of the choice `chosen` is on top.
    """
    unit, name = _unit(max(least, *(abs(size) for memory in drawn for points in _all(memory) for _, size in points)))
    with _drawing(WIDTH, HEIGHT) as drawing:
        axes = _step_axes(drawing, name)
        for number, memory in enumerate(drawn, 1):
            if number <= choices:
                _draw_choice(drawing, axes, memory, number, unit)
            above = 3.5 if number == chosen else 3
            _plot(drawing, axes, memory.line, unit, f"line line-{number}", color=_FAINT, linewidth=1.2, zorder=above)
        axes.set_xlim(min(m.line[0][0] for m in drawn), max(_last(memory) for memory in drawn))
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(high, low + least / unit))
        drawing.figure.tight_layout(pad=0.3)
        if len(drawn) > 1:
            drawing.figure.subplots_adjust(right=1 - _NAMES / WIDTH)

        def place(step: float, size: float) -> tuple[float, float]:
            x, y = axes.transData.transform((step, size / unit))
            return float(x), HEIGHT - float(y)

        names = _names(drawn, place)
        points = "".join(_dots(memory, number, place, absolute) for number, memory in enumerate(drawn[:choices], 1))
        return drawing.svg('class="plot" role="group" aria-label="Memory over the steps"', after=names + points)


def _step_axes(drawing: _Drawing, unit: str) -> Axes:
    """Axes of bytes, in this unit, over steps."""
    from matplotlib.ticker import MaxNLocator

    axes = drawing.figure.add_subplot()
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g} {unit}")
    axes.grid(True, axis="y", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.patch.set_visible(False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return axes


def fix_chart(before: Points, after: Points) -> str:
    """Bytes over the steps without and with a fix, as (step, bytes); "" without lines."""
    if min(len(before), len(after)) < _MIN_POINTS:
        return ""
    unit, name = _unit(max(size for _, size in (*before, *after)))
    with _drawing(WIDTH, HEIGHT) as drawing:
        axes = _step_axes(drawing, name)
        _plot(drawing, axes, before, unit, "", color=_BAD, linewidth=2.2)
        _plot(drawing, axes, after, unit, "", color=_GOOD, linewidth=2.2, linestyle="--")
        axes.set_xlim(min(before[0][0], after[0][0]), max(before[-1][0], after[-1][0]))
        drawing.figure.tight_layout(pad=0.3)
        ends = "; ".join(
            f"{how}: {bytes_text(line[0][1])} at step {line[0][0]}, {bytes_text(line[-1][1])} at step {line[-1][0]}"
            for how, line in (("without the fix", before), ("with the fix", after))
        )
        return drawing.svg(f'class="plot" role="img" aria-label="Memory over the steps, {ends}"')


def _all(memory: RankMemory) -> tuple[Points, ...]:
    return memory.line, memory.would_be, memory.peaks, *_stacked(memory)


def _last(memory: RankMemory) -> int:
    return max([memory.line[-1][0], *(dot.step for dot in memory.snapshots)])


def _plot(drawing: _Drawing, axes: Axes, points: Points, unit: float, classes: str, **style: Any) -> None:
    if points:
        (line,) = axes.plot([s for s, _ in points], [size / unit for _, size in points], **style)
        drawing.name(line, classes)


def _area(axes: Axes, places: Sequence[float], low: Sequence[float], high: Sequence[float], **style: Any) -> Artist:
    """The area between two lines, as a patch: the backend may draw the collection of `fill_between` through an id."""
    (area,) = axes.fill([*places, *reversed(places)], [*low, *reversed(high)], linewidth=0, **style)
    return area


def _draw_choice(drawing: _Drawing, axes: Axes, memory: RankMemory, number: int, unit: float) -> None:
    of = f"of of-{number}"
    for layer, colour, (lower, upper) in zip(memory.layers, layer_colours(memory.layers), _edges(memory), strict=True):
        if not layer.is_drawn:
            continue
        steps = [step for step, _ in lower]
        low, high = ([size / unit for _, size in edge] for edge in (lower, upper))
        area = _area(axes, steps, low, high, color=_series(colour), alpha=0.75, zorder=1)
        drawing.name(area, f"area {of}")
    _plot(drawing, axes, memory.peaks, unit, of, color=_series(3), linewidth=1.1, linestyle=":", zorder=2)
    _plot(drawing, axes, memory.would_be, unit, f"would {of}", color=_GOOD, linewidth=2.2, linestyle="--", zorder=4)
    if memory.collections:
        lines = axes.vlines(
            memory.collections[:MAX_COLLECTIONS], 0, 1, transform=axes.get_xaxis_transform(), colors=_series(3)
        )
        lines.set(linewidth=0.8, linestyle=":", zorder=0)
        drawing.name(lines, of)


def _edges(memory: RankMemory) -> list[tuple[Points, Points]]:
    """Lower and upper edge of each layer: growth is stacked upwards, shrinkage downwards."""
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


def _names(drawn: Sequence[RankMemory], place: Place) -> str:
    """The ranks' numbers at the ends of their lines, joined where lines meet."""
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


def _dots(memory: RankMemory, number: int, place: Place, absolute: bool) -> str:
    """The snapshots of one rank, the N-th choice, as points with a tooltip and focus.

    matplotlib has no such artist, so they are drawn above its output.
    """
    parts = [f'<g class="of of-{number}">']
    middle = (memory.snapshots[0].step + memory.snapshots[-1].step) / 2 if memory.snapshots else 0
    for dot in memory.read:
        x, y = place(dot.step, dot.bytes)
        lines = (f"step {dot.step}", *_figures(memory, dot, absolute))
        label = escape(", ".join((f"rank {memory.number}, step {dot.step}", *lines[1:])))
        beside, anchor = (x - 8, "end") if dot.step > middle else (x + 8, "start")
        top = min(max(y - 2 * _LINE, 0), _LOWEST)
        text = "".join(f'<tspan x="{beside:.1f}" dy="1.25em">{escape(line)}</tspan>' for line in lines)
        parts.append(
            f'<g class="point" tabindex="0" role="img" aria-label="{label}"><circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            f'<text y="{top:.1f}" text-anchor="{anchor}" aria-hidden="true">{text}</text></g>'
        )
    return "".join(parts) + "</g>"


def _figures(memory: RankMemory, dot: SnapshotDot, absolute: bool) -> tuple[str, ...]:
    """`counted +9.17 MiB`, `in tensors 12.40 MiB`, `with the cut 8.00 MiB less`."""
    sign = "" if absolute or dot.bytes < 0 else "+"
    figures = [f"{'counted' if memory.is_counted else 'in tensors'} {sign}{bytes_text(dot.bytes)}"]
    if memory.is_counted:
        figures.append(f"in tensors {bytes_text(dot.explained)}")
    if dot.freed is not None:
        figures.append(f"with the {'cut' if memory.cuts == 1 else 'cuts'} {bytes_text(dot.freed)} less")
    return tuple(figures)


def _unit(largest: float) -> tuple[float, str]:
    units = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
    return next(((size, name) for size, name in units if largest >= size), (1.0, "B"))


# The bytes of one finding

SPARK_WIDTH, SPARK_HEIGHT, SPARK_MARGIN = 150, 40, 4
"""Size of a sparkline and the room around its line, in px."""
_MIN_POINTS = 2
"""Minimum points of a line."""


def sparkline(points: Sequence[tuple[int, int]]) -> str:
    """Bytes over the steps, starting at 0 bytes, with a dot at each (step, bytes); "" without a line."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if len(points) < _MIN_POINTS:
        return ""
    first, last = points[0][0], points[-1][0]
    most = max(size for _, size in points) or 1
    wide, high = SPARK_WIDTH - 2 * SPARK_MARGIN, SPARK_HEIGHT - 2 * SPARK_MARGIN
    places = [
        (SPARK_MARGIN + wide * (step - first) / (last - first), SPARK_MARGIN + high * max(size, 0) / most)
        for step, size in points
    ]
    floor = [(places[-1][0], SPARK_MARGIN), (places[0][0], SPARK_MARGIN), places[0]]
    with _drawing(SPARK_WIDTH, SPARK_HEIGHT) as drawing:
        # of no length and with round ends: a marker would need an id
        dots = Path([place for place in places for _ in range(2)], [Path.MOVETO, Path.LINETO] * len(places))
        for path, style in (
            (Path([*places, *floor]), {"facecolor": _BAD_TINT, "linewidth": 0}),
            (Path(places), {"fill": False, "edgecolor": _BAD, "linewidth": 1.8}),
            (dots, {"fill": False, "edgecolor": _BAD, "linewidth": 4.8, "capstyle": "round"}),
        ):
            drawing.figure.add_artist(PathPatch(path, transform=None, **style))
        label = "Retained size at each heap snapshot: " + ", ".join(
            f"{bytes_text(size)} at step {step}" for step, size in points
        )
        size = f'width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}"'
        return drawing.svg(f'class="spark" {size} role="img" aria-label="{label}"')


# Operations of communication over time

_ROW, _TOP, _HEADING = 20.0, 42.0, 22.0
"""Height of a row, of the axis above all, and of the heading of a turn, in px."""
_BAR = 14.0
LABELS, TIMELINE_WIDTH = 250.0, 980.0
"""Width of the labels beside the bars, and of the whole chart, in px."""
SPANS = {"flight": 1, "held": 4, "ghost": 10}
"""Colours of an operation in flight, of its tensor while Python holds it, and of memory that outlives the tensor."""


@dataclass(frozen=True)
class OperationBar:
    """One drawn operation; positions are px from the left edge of the chart."""

    turn: str
    """Heading of its rows."""
    label: str
    title: str
    spans: tuple[tuple[str, float, float], ...]
    """(one of `SPANS`, from, to)"""
    waited: float | None
    lives_on: float | None
    """The right edge, if its memory was still alive there."""


@dataclass(frozen=True)
class StepMark:
    """The end of a step, with the pause after it."""

    step: int
    left: float
    right: float
    title: str


def operations_chart(
    bars: Sequence[OperationBar], ticks: Sequence[tuple[float, float]], marks: Sequence[StepMark], about: str
) -> str:
    """A row for each operation, from its issue to the end of its memory.

    The bars of one turn are adjacent. `ticks` are (px, seconds) on the time axis, and `about` describes the chart to
    screen readers.
    """
    from matplotlib.patches import Polygon, Rectangle

    tops: list[float] = []
    below = _TOP
    for place, bar in enumerate(bars):
        below += _HEADING if not place or bars[place - 1].turn != bar.turn else 0
        tops.append(below)
        below += _ROW
    height = tops[-1] + _ROW + 10
    with _drawing(TIMELINE_WIDTH, height) as drawing:
        axes = drawing.canvas()
        axes.vlines([x for x, _ in ticks], 20, height - 6, colors=_RULE, linewidth=1, zorder=0)
        for number, (x, seconds) in enumerate(ticks, 1):
            last = number == len(ticks)
            axes.text(x + 14 * last, 13, seconds_text(seconds), ha="right" if last else "center", color=_FAINT)
        for mark in marks:
            edge: dict[str, Any] = {"facecolor": _RULE, "edgecolor": _FAINT, "linestyle": (0, (2, 3))}
            pause = axes.add_patch(Rectangle((mark.left, 18), max(mark.right - mark.left, 0.5), height - 24, **edge))
            drawing.name(pause, "step", mark.title)
            bold: dict[str, Any] = {"color": _FAINT, "weight": "bold"}
            axes.text(mark.left - 4, 30, f"step {mark.step}", ha="right", **bold)
            axes.text(mark.right + 4, 30, f"{mark.step + 1}", **bold)
        for place, (bar, y) in enumerate(zip(bars, tops, strict=True)):
            if not place or bars[place - 1].turn != bar.turn:
                axes.text(0, y - 8, bar.turn, color=_FAINT, weight="bold")
            drawing.name(axes.text(8, y + 11, bar.label), "row")
            for kind, left, right in bar.spans:
                span = Rectangle((left, y), max(right - left, 1.0), _BAR, facecolor=_series(SPANS[kind]))
                drawing.name(axes.add_patch(span), kind, bar.title)
            if bar.waited is not None:
                axes.vlines(bar.waited, y - 2, y + _BAR + 2, colors=_INK, linewidth=2, zorder=2)
            if (end := bar.lives_on) is not None:
                corners = [(end, y), (end + 10, y + _BAR / 2), (end, y + _BAR)]
                arrow = Polygon(corners, facecolor=_series(SPANS["ghost"]))
                drawing.name(axes.add_patch(arrow), "on")
        axes.set(xlim=(0, TIMELINE_WIDTH), ylim=(height, 0))
        head = f"<title>Sends and receives over time</title><desc>{escape(about)}</desc>"
        return drawing.svg('class="timeline" role="img"', before=head)


# Memory snapshots of torch's allocator

_STRETCHES = 4
"""Number of tick intervals of an axis."""
_SNAPSHOT_WIDTH, _PLOT_HEIGHT, _LEFT, _RIGHT, _OVER, _UNDER = 860.0, 270.0, 90.0, 10.0, 20.0, 30.0
"""Size of the chart without its legend, and the room around its plot, in px."""
_LEGEND_ROW, _LETTER = 18.0, 6.5
"""Height of a row of the legend, and width of a letter in it, in px."""
_CLOSE = 130.0
"""Minimum px between two moments with separate texts."""
_ALIVE, _RESERVED = _series(1), _series(8)
_CATEGORIES = dict(zip(map(str, Category), map(_series, (4, 5, 3, 6, 7, 10, 9)), strict=True))
_OPACITY = 0.45
_CURVES = (1, 4, 5, 3, 10, 7, 6, 9)
"""Colour numbers of several curves: neighbours differ in hue."""
_UNSURE = "(kinds are judged from stacks and life spans)"


@dataclass(frozen=True)
class Moment:
    """A marked event of a snapshot."""

    event: int
    text: str
    is_failure: bool = False


def snapshot_chart(label: str, line: MemoryTimeline, moments: Sequence[Moment]) -> str:
    """Bytes alive, by kind, and reserved after each event of one device; "" without a history.

    The axis shows events, not time: a training waits for long and then allocates a thousand times in a millisecond. The
    numbers are those of `--at`.
    """
    if not line.at:
        return ""
    widest, highest = max(line.event[-1], 1), max(*line.alive, *line.reserved, 1)
    texts = []
    for step in range(_STRETCHES + 1):
        event = round(widest * step / _STRETCHES)
        nearest = min(bisect_left(line.event, event), len(line.event) - 1)
        texts.append(f"event {event}" + (f", {seconds_text(line.at[nearest])}" if line.clock else ""))
    labels = [f"{label}: alive", "reserved", *reversed(tuple(line.categories)), *([_UNSURE] if line.categories else [])]
    with _drawing(_SNAPSHOT_WIDTH, _snapshot_height(labels)) as drawing:
        axes = _snapshot_axes(drawing, widest, highest, texts)
        areas: list[Artist] = []
        lower = [0] * len(line.event)
        for kind, values in line.categories.items():
            upper = [below + more for below, more in zip(lower, values, strict=True)]
            area = _area(axes, line.event, lower, upper, color=_CATEGORIES[kind], alpha=_OPACITY)
            drawing.name(area, "kind")
            areas.append(area)
            lower = upper
        keys: list[Artist] = [
            *axes.plot(line.event, line.alive, color=_ALIVE, linewidth=1.5),
            *axes.plot(line.event, line.reserved, color=_RESERVED, linewidth=1.5, linestyle=(0, (3.3, 2.7))),
            *reversed(areas),
        ]
        _point_at(drawing, axes, moments, widest)
        return _snapshot_svg(drawing, keys, labels, "memory after each event")


def snapshots_chart(curves: Sequence[tuple[str, MemoryTimeline]]) -> str:
    """Bytes alive of several (label, timeline) on one axis; "" when none has a history.

    The axis is in seconds where all of them have times, otherwise in points.
    """
    curves = [(label, line) for label, line in curves if line.at]
    if not curves:
        return ""
    clock = all(line.clock for _, line in curves)
    places = [line.at if clock else tuple(map(float, range(len(line.at)))) for _, line in curves]
    widest = max(max(place) for place in places) or 1.0
    highest = max(max(line.alive) for _, line in curves) or 1
    ticks = [widest * step / _STRETCHES for step in range(_STRETCHES + 1)]
    labels = [label for label, _ in curves]
    with _drawing(_SNAPSHOT_WIDTH, _snapshot_height(labels)) as drawing:
        axes = _snapshot_axes(drawing, widest, highest, [seconds_text(at) if clock else f"{at:.0f}" for at in ticks])
        keys: list[Artist] = []
        for number, ((_, line), place) in enumerate(zip(curves, places, strict=True)):
            colour = _series(_CURVES[number % len(_CURVES)])
            (curve,) = axes.plot(place, line.alive, color=colour, linewidth=1.5)
            drawing.name(curve, "curve")
            keys.append(curve)
        return _snapshot_svg(drawing, keys, labels, "memory over time")


def _legend_columns(labels: Sequence[str]) -> int:
    widest = 40 + _LETTER * max(map(len, labels))
    return max(1, min(len(labels), int((_SNAPSHOT_WIDTH - _LEFT - _RIGHT) / widest)))


def _snapshot_height(labels: Sequence[str]) -> float:
    return _PLOT_HEIGHT + math.ceil(len(labels) / _legend_columns(labels)) * _LEGEND_ROW


def _snapshot_axes(drawing: _Drawing, widest: float, highest: float, texts: Sequence[str]) -> Axes:
    """Round fractions of the maximum at the left, and `texts` below at as many positions."""
    plot = (_SNAPSHOT_WIDTH - _LEFT - _RIGHT, _PLOT_HEIGHT - _OVER - _UNDER)
    bottom = drawing.height - _PLOT_HEIGHT + _UNDER
    axes = drawing.figure.add_axes(
        (_LEFT / drawing.width, bottom / drawing.height, plot[0] / drawing.width, plot[1] / drawing.height)
    )
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.grid(True, axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6, labelcolor=_FAINT)
    shares = range(_STRETCHES + 1)
    heights = [highest * share / _STRETCHES for share in shares]
    axes.set_yticks(heights, [bytes_text(value) for value in heights])
    axes.set_xticks([widest * share / _STRETCHES for share in shares], texts)
    axes.get_xticklabels()[0].set_horizontalalignment("left")
    axes.get_xticklabels()[-1].set_horizontalalignment("right")
    axes.set(xlim=(0, widest), ylim=(0, highest), autoscale_on=False)
    return axes


def _point_at(drawing: _Drawing, axes: Axes, moments: Sequence[Moment], widest: float) -> None:
    """A line for each, and a shared text for adjacent ones."""
    scale = (_SNAPSHOT_WIDTH - _LEFT - _RIGHT) / widest
    groups: list[list[Moment]] = []
    for moment in sorted(moments, key=lambda moment: moment.event):
        colour = _BAD if moment.is_failure else _ALIVE
        line = axes.axvline(moment.event, color=colour, linewidth=1, linestyle=(0, (2, 3)))
        drawing.name(line, "moment failure" if moment.is_failure else "moment")
        if groups and (moment.event - groups[-1][0].event) * scale < _CLOSE:
            groups[-1].append(moment)
        else:
            groups.append([moment])
    for group in groups:
        counts = Counter(moment.text for moment in group)
        text = ", ".join(f"{text} ({count} times)" if count > 1 else text for text, count in counts.items())
        side, by = ("right", -5) if group[0].event > widest / 2 else ("left", 5)
        at, above = (group[0].event, 1.0), axes.get_xaxis_transform()
        axes.annotate(text, at, xycoords=above, xytext=(by, 5), textcoords="offset points", ha=side)


def _snapshot_svg(drawing: _Drawing, keys: Sequence[Artist], labels: Sequence[str], name: str) -> str:
    """The chart and its legend, in a box that scrolls on a narrow screen."""
    from matplotlib.patches import Patch

    blank = [Patch(alpha=0)] * (len(labels) - len(keys))
    drawing.figure.legend(
        [*keys, *blank],
        labels,
        loc="lower left",
        bbox_to_anchor=(_LEFT / drawing.width, 0),
        ncols=_legend_columns(labels),
        frameon=False,
        borderpad=0,
        borderaxespad=0.4,
        handlelength=1.4,
        labelspacing=0.5,
    )
    svg = drawing.svg(f'class="snapshot" role="img" aria-label="{name}"')
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{name}, to scroll">{svg}</div>'
