"""Charts of memory over steps, with snapshots and the growth breakdown."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from leakscope.findings.capacity import FullAt, full_at
from leakscope.findings.categories import CATEGORIES
from leakscope.findings.model import Finding, Findings, LedgerInterval, Line, LineKind, totals
from leakscope.findings.thresholds import Thresholds
from leakscope.report.html.filters import as_drawing
from leakscope.report.messages.numbers import listed_numbers
from leakscope.report.messages.sections import leaks
from leakscope.report.messages.verdict import line_text
from leakscope.report.ranks import RankGroup, counted_steps
from leakscope.run.kinds import Occasion
from leakscope.run.model import Look, Rank, Run
from leakscope.units import bytes_text
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


POINTS = 160
"""Points of a line at the most, chosen; a longer one keeps the lowest and the highest of each stretch."""
LOOKS = 16
"""Looks at the most, chosen, that are dots to be read, spread over all: each is a stop of the Tab key."""
LAYERS = 4
"""Lines of a ledger, chosen, that are drawn one by one, the largest; the others are one."""
_STEP_ENDS = (Occasion.STEP, Occasion.LAST)

Points = tuple[tuple[int, float], ...]
"""(step, bytes), in the order of the steps."""


@dataclass(frozen=True)
class LookDot:
    """One look, as it is drawn and told."""

    step: int
    bytes: float
    """On the axis."""
    counted: int | None
    explained: int
    """In the storages found."""
    freed: float | None
    """Bytes that the cuts would have freed by then; None where there is none to make."""
    categories: Mapping[str, int]


@dataclass(frozen=True)
class Layer:
    """One line of the ledger: its growth since the first look."""

    text: str
    kind: LineKind | None
    """None of several together."""
    growth: Points
    is_drawn: bool = True
    """Not where it would look like a finding in a run that has none: unattributed, and too little to be told."""

    def at(self, step: int) -> float:
        """Bytes at the look at a step."""
        return dict(self.growth).get(step, 0.0)


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank, and of those that did the same."""

    number: int
    ranks: tuple[int, ...]
    line: Points
    """Counted memory at the end of each step or, where nothing counts, the storages found at looks; bytes on the axis:
    as they are on an accelerator, elsewhere their growth since the line's beginning."""
    is_counted: bool
    peaks: Points
    looks: tuple[LookDot, ...]
    layers: tuple[Layer, ...]
    """Each begins at the same look, with 0 bytes."""
    begins: float
    """Where on the axis the layers are stacked on, in bytes."""
    would_be: Points
    """Had the cuts of its leaks been made, from look to look; () where there are none."""
    cuts: int
    """Of how many leaks."""
    collections: tuple[int, ...]
    """Steps with a full collection of the program's own."""
    full: FullAt | None

    @property
    def has_line(self) -> bool:
        """Whether there are two points to draw it between."""
        return len(self.line) > 1

    @property
    def growth(self) -> float:
        """From the first point of the line to its last."""
        return self.line[-1][1] - self.line[0][1]

    @property
    def read(self) -> tuple[LookDot, ...]:
        """The looks that are told one by one."""
        return spread(self.looks, LOOKS)

    @property
    def saved(self) -> float:
        """Bytes that the cuts would have freed by the last look."""
        return (self.looks[-1].freed or 0.0) if self.looks else 0.0


def memory_of(run: Run, rank: Rank, findings: Findings, absolute: bool, ranks: Sequence[int] = ()) -> RankMemory | None:
    """The memory of one rank, which stands for `ranks`; None where nothing of it is known.

    `absolute`: the counted bytes are tensor memory (an accelerator's); otherwise only their growth means anything.
    """
    looks = _looks(rank)
    counted = counted_steps(rank)
    is_counted = len(counted) > 1
    points = counted if is_counted else [(look.step, look.explained_bytes) for look in looks]
    if not points:
        return None
    base = 0 if absolute else points[0][1]
    leaking = [f for f in leaks(findings) if f.cut is not None and f.cut.told_bytes and rank.number in f.ranks]
    summary = findings.ranks.get(rank.number)
    kinds = dict(summary.categories_by_step) if summary is not None else {}
    if summary is not None and looks:
        kinds.setdefault(looks[-1].step, summary.categories)
    dots = []
    for look in looks:
        seen = look.counted_bytes if is_counted else look.explained_bytes
        size = float((seen if seen is not None else look.explained_bytes) - base)
        freed = sum(_freed_at(finding, rank.number, look.step, absolute) for finding in leaking)
        dots.append(
            LookDot(
                look.step,
                size,
                look.counted_bytes,
                look.explained_bytes,
                freed if leaking else None,
                kinds.get(look.step, {}),
            )
        )
    untold = Thresholds(run.min_bytes).counted if findings.verdict == Verdict.CLEAN else None
    layers, begins = _layers(findings.ledgers.get(rank.number, ()), dots, untold)
    would = tuple((dot.step, dot.bytes - dot.freed) for dot in dots if dot.freed is not None)
    return RankMemory(
        number=rank.number,
        ranks=tuple(ranks) or (rank.number,),
        line=thinned(tuple((step, float(size - base)) for step, size in points)),
        is_counted=is_counted,
        peaks=_peaks(rank, points[-1][0]) if absolute else (),
        looks=tuple(dots),
        layers=layers,
        begins=begins,
        would_be=would if len(would) > 1 else (),
        cuts=len(leaking),
        collections=tuple(s.number for s in rank.steps if any(c.is_full for c in s.collections)),
        full=full_at(rank, run.warmup_of(rank)) if absolute else None,
    )


def _looks(rank: Rank) -> list[Look]:
    """Those at the end of a step, at which the device was counted that was counted last; the later of two at one."""
    looks = [look for look in rank.looks if look.occasion in _STEP_ENDS]
    return list({look.step: look for look in looks if look.counted_on == looks[-1].counted_on}.values())


def _freed_at(finding: Finding, rank: int, step: int, on_device: bool) -> float:
    """Bytes that the cut of a leak would have freed at a look: what was seen of it there, or by its growth where it was
    not looked for.
    """
    assert finding.cut is not None
    share = min((finding.cut.told_bytes or 0) / max(finding.retained_bytes, 1), 1.0)
    if on_device:
        share *= 1 - finding.host_bytes / max(finding.retained_bytes, 1)
    seen = {s.step: s.bytes for s in finding.sightings if s.rank == rank}
    nearest = min(seen, key=lambda at: abs(at - step))
    slope = finding.bytes_per_step / len(finding.ranks)
    return share * max(seen[nearest] + slope * (step - nearest), 0.0)


def _layers(
    intervals: Sequence[LedgerInterval], dots: Sequence[LookDot], untold: int | None
) -> tuple[tuple[Layer, ...], float]:
    """The largest lines of a ledger, the others as one, and where on the axis they begin.

    `untold`: bytes a step below which what is unattributed is not drawn.
    """
    same = [interval for interval in intervals if interval.counted_on == intervals[-1].counted_on]
    begins = next((dot.bytes for dot in dots if same and dot.step == same[0].from_step), None)
    if begins is None:
        return (), 0.0
    lines = totals(same)
    shown = sorted(lines, key=lambda line: -abs(line.bytes))[: LAYERS + (len(lines) == LAYERS + 1)]
    named = [
        Layer(line_text(line), line.kind, _growth(same, {line.name}))
        for line in sorted(shown, key=lambda line: (line.kind != LineKind.LEAKS, -line.bytes))
    ]
    for kind in (LineKind.LEAKS, None):
        others = {
            line.name for line in lines if line not in shown and (line.kind == LineKind.LEAKS) == (kind is not None)
        }
        if others:
            named.append(
                Layer(f"{len(others)} smaller {'lines' if kind is None else 'leaks'}", kind, _growth(same, others))
            )
    return tuple(layer if _is_told(layer, untold) else replace(layer, is_drawn=False) for layer in named), begins


def _is_told(layer: Layer, untold: int | None) -> bool:
    if untold is None or layer.kind != LineKind.UNATTRIBUTED:
        return True
    (first, _), (last, size) = layer.growth[0], layer.growth[-1]
    return size >= untold * (last - first)


def _growth(intervals: Sequence[LedgerInterval], names: Iterable[tuple[str, ...]]) -> Points:
    names = frozenset(names)

    def of(lines: Iterable[Line]) -> float:
        return float(sum(line.bytes for line in lines if line.name in names))

    sums = accumulate((of(interval.lines) for interval in intervals), initial=0.0)
    return tuple(zip([intervals[0].from_step, *(interval.to_step for interval in intervals)], sums, strict=True))


def _peaks(rank: Rank, last: int) -> Points:
    """Noted where it rose."""
    peaks = [(step.number, float(step.peak_bytes)) for step in rank.steps if step.peak_bytes is not None]
    return thinned((*peaks, (last, peaks[-1][1]))) if peaks else ()


def spread(all_of_them: Sequence[LookDot], most: int) -> tuple[LookDot, ...]:
    """So many of them, the first and the last among them."""
    last = len(all_of_them) - 1
    if last < most:
        return tuple(all_of_them)
    return tuple(all_of_them[round(place * last / (most - 1))] for place in range(most))


def thinned(points: Points, most: int = POINTS) -> Points:
    """The line with fewer points: the first and the last, and between them the lowest and highest of each stretch."""
    if len(points) <= most:
        return points
    inner, count = points[1:-1], most // 2 - 1
    kept = [points[0]]
    for place in range(count):
        some = inner[place * len(inner) // count : (place + 1) * len(inner) // count]
        kept += sorted({min(some, key=lambda p: p[1]), max(some, key=lambda p: p[1])})
    return (*kept, points[-1])


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


LINES = 24
"""Groups of ranks, chosen, that have a line; those that stand out come first."""
CHOICES = 8
"""Groups of ranks, chosen, whose ledger and looks are shown where one of them is chosen; the page's style knows as
many."""


@dataclass(frozen=True)
class Choice:
    """One rank that can be chosen, for those that did the same."""

    memory: RankMemory
    colours: tuple[int, ...]
    """Of its layers, among the page's."""
    categories: tuple[str, ...]
    """What its memory is, of all that it ever was at a look."""


@dataclass(frozen=True)
class MemoryOnPage:
    """The chart and what stands beside it."""

    svg: Markup | None
    choices: tuple[Choice, ...]
    chosen: int
    """The number, from 1, of the one that is shown at first."""
    left_out: int
    """Groups that have no line."""


def memory_on_page(run: Run, findings: Findings, groups: Sequence[RankGroup], absolute: bool) -> MemoryOnPage | None:
    """The chart of all groups of ranks; None where nothing is known of any.

    First shown is the one whose cuts would free most, or the one that grew most.
    """
    ranks = {rank.number: rank for rank in run.ranks}
    known = [memory_of(run, ranks[group.representative], findings, absolute, group.ranks) for group in groups]
    found = [memory for memory in known if memory is not None]
    found = [memory for memory in found if memory.has_line] or found[:CHOICES]
    if not found:
        return None
    most = max(found, key=lambda memory: (memory.saved, memory.growth, -memory.number))
    others = [memory for memory in found if memory is not most]
    choices = sorted([most, *others[: CHOICES - 1]], key=lambda memory: memory.number)
    drawn = [*choices, *others[CHOICES - 1 : LINES - 1]]
    chosen = choices.index(most) + 1
    least = Thresholds(run.min_bytes).counted * max(memory.line[-1][0] - memory.line[0][0] for memory in drawn)
    return MemoryOnPage(
        svg=as_drawing(memory_chart(drawn, len(choices), absolute, least, chosen) if most.has_line else ""),
        choices=tuple(Choice(memory, layer_colours(memory.layers), _categories(memory)) for memory in choices),
        chosen=chosen,
        left_out=len(found) - len(drawn),
    )


def _categories(memory: RankMemory) -> tuple[str, ...]:
    names = {name for look in memory.looks for name, size in look.categories.items() if size}
    known = [name for name in CATEGORIES if name in names]
    return (*known, *sorted(names - set(known)))
