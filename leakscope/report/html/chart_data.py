"""Data of the page's charts: memory over the steps, and communication over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from leakscope.findings.capacity import FullAt, full_at
from leakscope.findings.categories import CATEGORIES
from leakscope.findings.comm import Turn, turns_of
from leakscope.findings.counters import counted_steps
from leakscope.findings.model import Finding, Findings, LedgerInterval, Line, LineKind, totals
from leakscope.findings.thresholds import Thresholds
from leakscope.report.charts import (
    LABELS,
    TIMELINE_WIDTH,
    OperationBar,
    StepMark,
    layer_colours,
    memory_chart,
    operations_chart,
)
from leakscope.report.growth_text import line_text
from leakscope.report.rank_text import operation_name
from leakscope.report.ranks import RankGroup
from leakscope.report.rendering import cleaned
from leakscope.run.model import HeapSnapshot, Rank, Run
from leakscope.run.operations import column
from leakscope.run.rows import CommOperation, Occasion
from leakscope.units import bytes_text, seconds_text
from leakscope.verdict import Verdict

POINTS = 160
"""Maximum points of a line, heuristic: one every 4 px. A longer line keeps the minimum and maximum of each interval."""
SNAPSHOTS = 16
"""Maximum snapshots drawn as dots, evenly spaced; heuristic: each is a stop of the Tab key."""
LAYERS = 4
"""Lines of the growth breakdown with an area of their own, the largest; heuristic: colours of more look alike."""
_STEP_ENDS = (Occasion.STEP, Occasion.LAST)

Points = tuple[tuple[int, float], ...]
"""(step, bytes), in the order of the steps."""


@dataclass(frozen=True)
class SnapshotDot:
    """One heap snapshot as a dot."""

    step: int
    bytes: float
    """On the axis."""
    counted: int | None
    explained: int
    """In the storages found."""
    freed: float | None
    """Bytes that the cuts would have freed by then; None without a cut."""
    categories: Mapping[str, int]


@dataclass(frozen=True)
class Layer:
    """One line of the growth breakdown: its growth since the first snapshot."""

    text: str
    kind: LineKind | None
    """None for several together."""
    growth: Points
    is_drawn: bool = True
    """False for unattributed growth below the threshold in a clean run, where an area would look like a finding."""

    def at(self, step: int) -> float:
        """Bytes at the snapshot of a step."""
        return dict(self.growth).get(step, 0.0)


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank, representative of others that are alike."""

    number: int
    ranks: tuple[int, ...]
    line: Points
    """Counted memory at the end of each step or, where nothing counts, the storages of each snapshot. Absolute bytes on
    an accelerator, elsewhere growth since the first point."""
    is_counted: bool
    peaks: Points
    snapshots: tuple[SnapshotDot, ...]
    layers: tuple[Layer, ...]
    """All start at the same snapshot, with 0 bytes."""
    begins: float
    """Bytes on the axis at which the stack of layers starts."""
    would_be: Points
    """Memory at each snapshot if the cuts had been made; () without cuts."""
    cuts: int
    """Leaks with a cut."""
    collections: tuple[int, ...]
    """Steps with a full garbage collection by the program."""
    full: FullAt | None

    @property
    def has_line(self) -> bool:
        """Whether there are at least two points."""
        return len(self.line) > 1

    @property
    def growth(self) -> float:
        """From the first point of the line to the last."""
        return self.line[-1][1] - self.line[0][1]

    @property
    def read(self) -> tuple[SnapshotDot, ...]:
        """The snapshots drawn as dots, evenly spaced, including the first and the last."""
        last = len(self.snapshots) - 1
        if last < SNAPSHOTS:
            return self.snapshots
        return tuple(self.snapshots[round(place * last / (SNAPSHOTS - 1))] for place in range(SNAPSHOTS))

    @property
    def saved(self) -> float:
        """Bytes that the cuts would have freed by the last snapshot."""
        return (self.snapshots[-1].freed or 0.0) if self.snapshots else 0.0


def memory_of(run: Run, rank: Rank, findings: Findings, absolute: bool, ranks: Sequence[int] = ()) -> RankMemory | None:
    """The memory of one rank, which represents `ranks`; None if nothing is known.

    `absolute`: the counted bytes are tensor memory (an accelerator's); otherwise only their growth is meaningful.
    """
    snapshots = _snapshots(rank)
    counted = [(step.number, step.counted_bytes or 0) for step in counted_steps(rank)]
    is_counted = len(counted) > 1
    points = counted if is_counted else [(snapshot.step, snapshot.explained_bytes) for snapshot in snapshots]
    if not points:
        return None
    base = 0 if absolute else points[0][1]
    leaking = [f for f in findings.leaks if f.cut is not None and f.cut.reported_bytes and rank.number in f.ranks]
    summary = findings.ranks.get(rank.number)
    kinds = dict(summary.categories_by_step) if summary is not None else {}
    if summary is not None and snapshots:
        kinds.setdefault(snapshots[-1].step, summary.categories)
    dots = []
    for snapshot in snapshots:
        seen = snapshot.counted_bytes if is_counted else snapshot.explained_bytes
        size = float((seen if seen is not None else snapshot.explained_bytes) - base)
        freed = sum(_freed_at(finding, rank.number, snapshot.step, absolute) for finding in leaking)
        dots.append(
            SnapshotDot(
                snapshot.step,
                size,
                snapshot.counted_bytes,
                snapshot.explained_bytes,
                freed if leaking else None,
                kinds.get(snapshot.step, {}),
            )
        )
    hidden_below = Thresholds(run.min_bytes).for_counters if findings.verdict == Verdict.CLEAN else None
    layers, begins = _layers(findings.ledgers.get(rank.number, ()), dots, hidden_below)
    would = tuple((dot.step, dot.bytes - dot.freed) for dot in dots if dot.freed is not None)
    return RankMemory(
        number=rank.number,
        ranks=tuple(ranks) or (rank.number,),
        line=thinned(tuple((step, float(size - base)) for step, size in points)),
        is_counted=is_counted,
        peaks=_peaks(rank, points[-1][0]) if absolute else (),
        snapshots=tuple(dots),
        layers=layers,
        begins=begins,
        would_be=would if len(would) > 1 else (),
        cuts=len(leaking),
        collections=tuple(s.number for s in rank.steps if any(c.is_full for c in s.collections)),
        full=full_at(rank, run.warmup_of(rank)) if absolute else None,
    )


def _snapshots(rank: Rank) -> list[HeapSnapshot]:
    """Snapshots at the end of a step, of the device counted last; the later of two at one step."""
    found = [snapshot for snapshot in rank.heap_snapshots if snapshot.occasion in _STEP_ENDS]
    return list({each.step: each for each in found if each.counted_on == found[-1].counted_on}.values())


def _freed_at(finding: Finding, rank: int, step: int, on_device: bool) -> float:
    """Bytes that the cut of a leak would have freed at a snapshot: as found there, else extrapolated."""
    assert finding.cut is not None
    share = min((finding.cut.reported_bytes or 0) / max(finding.retained_bytes, 1), 1.0)
    if on_device:
        share *= 1 - finding.host_bytes / max(finding.retained_bytes, 1)
    seen = {s.step: s.bytes for s in finding.sightings if s.rank == rank}
    nearest = min(seen, key=lambda at: abs(at - step))
    slope = finding.bytes_per_step / len(finding.ranks)
    return share * max(seen[nearest] + slope * (step - nearest), 0.0)


def _layers(
    intervals: Sequence[LedgerInterval], dots: Sequence[SnapshotDot], hidden_below: int | None
) -> tuple[tuple[Layer, ...], float]:
    """The largest lines of the growth breakdown, the others as one, and the bytes at which they start.

    `hidden_below`: bytes per step below which unattributed growth is not drawn.
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
    return tuple(layer if _is_shown(layer, hidden_below) else replace(layer, is_drawn=False) for layer in named), begins


def _is_shown(layer: Layer, hidden_below: int | None) -> bool:
    if hidden_below is None or layer.kind != LineKind.UNATTRIBUTED:
        return True
    (first, _), (last, size) = layer.growth[0], layer.growth[-1]
    return size >= hidden_below * (last - first)


def _growth(intervals: Sequence[LedgerInterval], names: Iterable[tuple[str, ...]]) -> Points:
    names = frozenset(names)

    def of(lines: Iterable[Line]) -> float:
        return float(sum(line.bytes for line in lines if line.name in names))

    sums = accumulate((of(interval.lines) for interval in intervals), initial=0.0)
    return tuple(zip([intervals[0].from_step, *(interval.to_step for interval in intervals)], sums, strict=True))


def _peaks(rank: Rank, last: int) -> Points:
    """The peaks at which it rose."""
    peaks = [(step.number, float(step.peak_bytes)) for step in rank.steps if step.peak_bytes is not None]
    return thinned((*peaks, (last, peaks[-1][1]))) if peaks else ()


def thinned(points: Points) -> Points:
    """The line with fewer points: the first, the last, and the minimum and maximum of each interval."""
    if len(points) <= POINTS:
        return points
    inner, count = points[1:-1], POINTS // 2 - 1
    kept = [points[0]]
    for place in range(count):
        some = inner[place * len(inner) // count : (place + 1) * len(inner) // count]
        kept += sorted({min(some, key=lambda p: p[1]), max(some, key=lambda p: p[1])})
    return (*kept, points[-1])


LINES = 24
"""Groups of ranks with a line; heuristic: more lines overlap."""
CHOICES = 8
"""Groups of ranks that can be selected; `report.css` has as many selectors."""


@dataclass(frozen=True)
class Choice:
    """One rank that can be selected, representative of others that are alike."""

    memory: RankMemory
    colours: tuple[int, ...]
    """Of its layers, among those of the page."""
    categories: tuple[str, ...]
    """Categories of its memory at any snapshot."""


@dataclass(frozen=True)
class MemoryOnPage:
    """The chart and its legend."""

    svg: str
    """"" if no rank has two points."""
    choices: tuple[Choice, ...]
    chosen: int
    """Number, from 1, of the one that is shown at first."""
    left_out: int
    """Groups that have no line."""


def memory_on_page(run: Run, findings: Findings, groups: Sequence[RankGroup], absolute: bool) -> MemoryOnPage | None:
    """The chart of all groups of ranks; None if nothing is known.

    It first shows the group whose cuts would free most, or the one that grew most.
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
    least = Thresholds(run.min_bytes).for_counters * max(memory.line[-1][0] - memory.line[0][0] for memory in drawn)
    return MemoryOnPage(
        svg=memory_chart(drawn, len(choices), absolute, least, chosen) if most.has_line else "",
        choices=tuple(Choice(memory, layer_colours(memory.layers), _categories(memory)) for memory in choices),
        chosen=chosen,
        left_out=len(found) - len(drawn),
    )


def _categories(memory: RankMemory) -> tuple[str, ...]:
    names = {name for snapshot in memory.snapshots for name, size in snapshot.categories.items() if size}
    known = [name for name in CATEGORIES if name in names]
    return (*known, *sorted(names - set(known)))


# Communication over time

_SEEN = 1e-3
"""Seconds below which a pause is ignored."""
LAST = 6
"""Steps whose ends are read: more than `STEPS_SHOWN`, as the last is cut short."""
Span = tuple[float, float]
"""From and to, in seconds of the recording, like the times of comm operations."""


@dataclass(frozen=True)
class StepEnd:
    """The end of a step, and leakscope's pause before the next one."""

    step: int
    moment: float
    resumed: float
    """Start of the next step; the same time without a pause."""


def step_ends(rank: Rank) -> tuple[StepEnd, ...]:
    """The ends of the last steps that are followed by another one, in order."""
    steps = sorted(rank.steps, key=lambda step: step.number)[-LAST:]
    return tuple(
        StepEnd(step.number, end := step.began + step.seconds, max(after.began, end))
        for step, after in pairwise(steps)
        if step.began is not None and after.began is not None
    )


def own_seconds(begin: float, end: float, ends: Sequence[StepEnd]) -> float:
    """Seconds between two times without leakscope's pauses."""
    return end - begin - sum(max(0.0, min(end, e.resumed) - max(begin, e.moment)) for e in ends)


@dataclass(frozen=True)
class Axis:
    """Positions on an axis of the program's own time; each pause has the width of a mark."""

    begin: float
    end: float
    pauses: tuple[Span, ...]
    left: float
    width: float
    mark: float
    """Width of a pause's mark."""

    @property
    def seconds(self) -> float:
        """Seconds of the program's own time on the whole axis."""
        return max(self.end - self.begin - sum(b - a for a, b in self.pauses), 1e-6)

    def own(self, moment: float) -> float:
        """Seconds of the program's own time from the start to a moment."""
        moment = min(max(moment, self.begin), self.end)
        return moment - self.begin - sum(max(0.0, min(moment, b) - a) for a, b in self.pauses)

    def across(self, moment: float) -> float:
        """Position of a moment."""
        moment = min(max(moment, self.begin), self.end)
        marks = sum(min(max((moment - a) / (b - a), 0.0), 1.0) for a, b in self.pauses)
        return self.left + self.own(moment) * self._scale + marks * self.mark

    def at(self, own: float) -> float:
        """Position of this many seconds of the program's own time."""
        gone = [(self.own(a), self.mark) for a, _ in self.pauses]
        return self.left + own * self._scale + sum(mark for until, mark in gone if until < own)

    @property
    def _scale(self) -> float:
        return (self.width - self.mark * len(self.pauses)) / self.seconds


def axis(begin: float, end: float, ends: Sequence[StepEnd], left: float, width: float, mark: float) -> Axis:
    """The axis between two times, without leakscope's pauses, which do not overlap."""
    end = max(end, begin + 1e-6)
    pauses: list[Span] = []
    for each in sorted(ends, key=lambda each: each.moment):
        a, b = max(each.moment, begin, *(until for _, until in pauses)), min(each.resumed, end)
        if b - a > _SEEN:
            pauses.append((a, b))
    return Axis(begin, end, tuple(pauses), left, width, mark)


STEPS_SHOWN = 2
"""Maximum steps drawn; heuristic: more make the bars too short to compare."""
ROWS_SHOWN = 80
"""Maximum rows drawn; heuristic: two steps of a schedule with 20 microbatches."""
_STRETCHES = 5
"""Number of tick intervals of an axis."""
_AFTER, _PAUSE = 20.0, 12.0
"""Px after the end of the axis, and of a pause on it."""
_NAME = 34
"""Characters of the name of an operation, heuristic: as many fit beside the bars."""
_LIVES = ("waited", "completed", "tensor_died", "storage_died")


@dataclass(frozen=True)
class OperationRow:
    """One operation in words."""

    step: int
    turn: int
    tensor: str
    """`2 of 2`, "" for a single tensor."""
    what: str
    """`send to 1 tag 3`"""
    size: str
    issued_at: str
    issued: str
    """Seconds of the program's own time since the left edge."""
    lives: tuple[str, ...]
    """Wait, completion, and death of its tensor and its memory, relative to its issue."""


@dataclass(frozen=True)
class Timeline:
    """One rank's drawing and its omissions."""

    svg: str
    rows: tuple[OperationRow, ...]
    """The drawn operations, in order."""
    steps: tuple[int, ...]
    left_out: int
    """Omitted operations of the shown steps."""
    alive: int
    """Operations of the shown steps whose storage was alive at the end of the run."""
    paused: float
    """Seconds of leakscope's pauses that the axis omits."""


def timeline(operations: Sequence[CommOperation], ends: Sequence[StepEnd] = ()) -> Timeline | None:
    """The operations of at most two steps, turn by turn; None without timed ones. `ends` are the ends of steps.

    The steps shown are the last but one and the one before it, as the last is cut short by the end of the run.
    """
    # by columns: there may be a million, of which the steps shown have a few
    issued = list(zip(column(operations, "step"), column(operations, "issued"), strict=True))
    numbers = sorted({step for step, moment in issued if math.isfinite(moment)})
    if not numbers:
        return None
    steps = tuple(numbers[-STEPS_SHOWN - 1 : -1] if len(numbers) > STEPS_SHOWN else numbers)
    ours = [operations[k] for k, (step, moment) in enumerate(issued) if step in steps and math.isfinite(moment)]
    later = min((moment for step, moment in issued if step > steps[-1] and math.isfinite(moment)), default=None)
    turns = turns_of(ours)
    chosen = sorted(ours, key=lambda row: (row.step, turns[row.id].turn, row.issued, row.id))
    shown = cleaned(chosen[:ROWS_SHOWN])
    width = TIMELINE_WIDTH - LABELS - _AFTER
    time = axis(min(row.issued for row in shown), _end(shown, later), ends, LABELS, width, _PAUSE)
    return Timeline(
        svg=operations_chart(
            [_bar(row, turns[row.id], time) for row in shown],
            _ticks(time),
            [_step_mark(end, time) for end in ends if time.begin < end.moment < time.end],
            f"{len(shown)} operations of steps {shown[0].step} to {shown[-1].step}, listed in the data table",
        ),
        rows=tuple(_row(row, turns[row.id], time, ends) for row in shown),
        steps=steps,
        left_out=len(chosen) - len(shown),
        alive=sum(_moment(row.storage_died) is None for row in chosen),
        paused=sum(b - a for a, b in time.pauses),
    )


def _end(shown: Sequence[CommOperation], later: float | None) -> float:
    """Right edge: the last event shown, but not far beyond the following step."""
    start = min(row.issued for row in shown)
    events = [
        _moment(moment)
        for row in shown
        for moment in (row.issued, row.waited, row.completed, row.tensor_died, row.storage_died)
    ]
    last = max(event for event in events if event is not None)
    issued = max(row.issued for row in shown)
    limit = last if later is None else max(later, issued) + 0.15 * (later - start)
    return max(min(last, limit), start + 1e-6)


def _step_mark(end: StepEnd, time: Axis) -> StepMark:
    """A line, and a gap in the axis for leakscope's pause."""
    title = f"step {end.step} ends"
    if (end.moment, end.resumed) in time.pauses:
        title += f"; leakscope's pause of {seconds_text(end.resumed - end.moment)} is left out"
    return StepMark(end.step, time.across(end.moment), time.across(end.resumed), title)


def _ticks(time: Axis) -> list[tuple[float, float]]:
    owns = [tick * time.seconds / _STRETCHES for tick in range(_STRETCHES + 1)]
    return [*((time.at(own), own) for own in owns[:-1]), (time.across(time.end), owns[-1])]


def _bar(row: CommOperation, turn: Turn, time: Axis) -> OperationBar:
    end, issued = time.end, row.issued
    completed, waited = _moment(row.completed), _moment(row.waited)
    tensor, storage = _moment(row.tensor_died), _moment(row.storage_died)
    gone = end if storage is None else storage
    python = min(gone, end if tensor is None else tensor)
    done = min(gone, waited if completed is None and waited is not None else end if completed is None else completed)
    spans = (("flight", issued, done), ("held", done, max(done, python)), ("ghost", max(done, python), gone))
    return OperationBar(
        turn=f"step {row.step}, turn {turn.turn}",
        label=f"{operation_name(row)[:_NAME]}{_tensor(turn, ' {}', '/')}  {bytes_text(row.bytes)}",
        title=_tooltip(row),
        spans=tuple((k, time.across(left), time.across(right)) for k, left, right in spans if left < min(right, end)),
        waited=time.across(waited) if waited is not None and waited <= end else None,
        lives_on=time.across(end) if storage is None or storage > end else None,
    )


def _row(row: CommOperation, turn: Turn, time: Axis, ends: Sequence[StepEnd]) -> OperationRow:
    lives = (_moment(getattr(row, life)) for life in _LIVES)
    return OperationRow(
        step=row.step,
        turn=turn.turn,
        tensor=_tensor(turn, "{}"),
        what=operation_name(row)[:_NAME],
        size=bytes_text(row.bytes),
        issued_at=row.issued_at,
        issued=seconds_text(time.own(row.issued)),
        lives=tuple(
            "not recorded" if moment is None else f"+{seconds_text(own_seconds(row.issued, moment, ends))}"
            for moment in lives
        ),
    )


def _tensor(turn: Turn, words: str, of: str = " of ") -> str:
    return words.format(f"{turn.tensor}{of}{turn.tensors}") if turn.tensors > 1 else ""


def _tooltip(row: CommOperation) -> str:
    sizes = ", ".join(map(str, row.shape))
    return f"{row.dtype}[{sizes}] group {row.group}, issued at {row.issued_at or 'unknown place'}"


def _moment(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
