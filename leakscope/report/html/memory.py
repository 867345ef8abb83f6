"""Memory over the steps: what the chart and the table beside it show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from leakscope.findings.capacity import FullAt, full_at
from leakscope.findings.categories import CATEGORIES
from leakscope.findings.model import Finding, Findings, LedgerInterval, Line, LineKind, totals
from leakscope.findings.thresholds import Thresholds
from leakscope.report.charts import layer_colours, memory_chart
from leakscope.report.html.filters import as_drawing
from leakscope.report.messages.sections import leaks
from leakscope.report.messages.verdict import line_text
from leakscope.report.ranks import RankGroup, counted_steps
from leakscope.run.model import Look, Rank, Run
from leakscope.run.rows import Occasion
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from markupsafe import Markup


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
