"""The timeline of ranks and their communication."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.findings.comm import Turn, turns_of
from leakscope.report.charts import LABELS, TIMELINE_WIDTH, OperationBar, StepMark, operations_chart
from leakscope.report.escape import cleaned, one_line
from leakscope.run.model import Rank
from leakscope.run.operations import column
from leakscope.run.rows import CommOperation, Occasion
from leakscope.units import bytes_text, seconds_text

_SEEN = 1e-3
"""Seconds below which a pause is none."""
LAST = 6
"""Steps, chosen, that the ends are asked for: a few more than are drawn."""
Span = tuple[float, float]
"""From and to, in seconds of the recording, as the moments of comm operations."""


@dataclass(frozen=True)
class StepEnd:
    """The end of a step, and what leakscope did before the next one."""

    step: int
    moment: float
    resumed: float
    """When the next step began; the same moment where there was no pause."""
    exact: bool
    """False where it was not recorded, and is told by what was seen before and after."""


def step_ends(rank: Rank, last: int = LAST) -> tuple[StepEnd, ...]:
    """The ends of the last steps that have one after them, in order."""
    begins = {step.number: (step.began, step.seconds) for step in rank.steps}
    numbers = sorted(begins.keys() | set(column(rank.operations, "step")))[-last:]
    issued: dict[int, Span] = {}
    events: tuple[float, ...] = ()
    if any(begins.get(number, (None, 0.0))[0] is None for number in numbers):
        issued = _issued(rank, numbers)
        events = _events(rank, min((first for first, _ in issued.values()), default=math.inf))
    looked = {look.step: look.seconds for look in rank.looks if look.occasion == Occasion.STEP}
    found = []
    for a, b in pairwise(numbers):
        (began, seconds), (then, _) = begins.get(a, (None, 0.0)), begins.get(b, (None, 0.0))
        if began is not None and then is not None:
            found.append(StepEnd(a, began + seconds, max(then, began + seconds), True))
        elif a in issued and b in issued and issued[a][1] <= issued[b][0]:
            found.append(_guessed(a, (issued[a][1], issued[b][0]), looked.get(a, 0.0), events))
    return tuple(found)


def _issued(rank: Rank, steps: Sequence[int]) -> dict[int, Span]:
    """When the first and the last operation of each step were issued."""
    spans: dict[int, Span] = {}
    for step, moment in zip(column(rank.operations, "step"), column(rank.operations, "issued"), strict=True):
        if step >= steps[0] and math.isfinite(moment):
            first, last = spans.get(step, (math.inf, -math.inf))
            spans[step] = min(first, moment), max(last, moment)
    return spans


def _events(rank: Rank, begin: float) -> tuple[float, ...]:
    """Moments from `begin` on at which something happened to an operation."""
    names = ("issued", "waited", "completed", "tensor_died", "storage_died", "work_died")
    moments = (moment for name in names for moment in column(rank.operations, name))
    return tuple(sorted(moment for moment in moments if moment is not None and begin <= moment < math.inf))


def _guessed(step: int, gap: Span, seconds: float, events: Sequence[float]) -> StepEnd:
    """Between the last operation of a step and the first of the next: nothing happens while a look is taken."""
    inside = [gap[0], *(moment for moment in events if gap[0] < moment < gap[1]), gap[1]]
    begin, end = max(pairwise(inside), key=lambda span: span[1] - span[0])
    middle, half = (begin + end) / 2, min(seconds, end - begin) / 2
    return StepEnd(step, middle - half, middle + half, False)


def own_seconds(begin: float, end: float, ends: Sequence[StepEnd]) -> float:
    """Seconds from one moment to a later one, leakscope's pauses left out."""
    return end - begin - sum(max(0.0, min(end, e.resumed) - max(begin, e.moment)) for e in ends)


@dataclass(frozen=True)
class Axis:
    """Places on an axis of the program's own time; each pause has the width of a mark."""

    begin: float
    end: float
    pauses: tuple[Span, ...]
    left: float
    width: float
    mark: float
    """Width of a pause's mark."""

    @property
    def seconds(self) -> float:
        """The program's own time from one end to the other."""
        return max(self.end - self.begin - sum(b - a for a, b in self.pauses), 1e-6)

    def own(self, moment: float) -> float:
        """Seconds of the program's own from the begin to a moment, those of leakscope left out."""
        moment = min(max(moment, self.begin), self.end)
        return moment - self.begin - sum(max(0.0, min(moment, b) - a) for a, b in self.pauses)

    def across(self, moment: float) -> float:
        """Where a moment is drawn."""
        moment = min(max(moment, self.begin), self.end)
        marks = sum(min(max((moment - a) / (b - a), 0.0), 1.0) for a, b in self.pauses)
        return self.left + self.own(moment) * self._scale + marks * self.mark

    def at(self, own: float) -> float:
        """Where so many seconds of the program's own are drawn."""
        gone = [(self.own(a), self.mark) for a, _ in self.pauses]
        return self.left + own * self._scale + sum(mark for until, mark in gone if until < own)

    @property
    def _scale(self) -> float:
        return (self.width - self.mark * len(self.pauses)) / self.seconds


def axis(begin: float, end: float, ends: Sequence[StepEnd], left: float, width: float, mark: float) -> Axis:
    """The axis from one moment to another, without leakscope's pauses in between; none of them overlaps another."""
    end = max(end, begin + 1e-6)
    pauses: list[Span] = []
    for each in sorted(ends, key=lambda each: each.moment):
        a, b = max(each.moment, begin, *(until for _, until in pauses)), min(each.resumed, end)
        if b - a > _SEEN:
            pauses.append((a, b))
    return Axis(begin, end, tuple(pauses), left, width, mark)


STEPS_SHOWN = 2
"""Steps at the most, chosen, that are drawn."""
ROWS_SHOWN = 80
"""Rows at the most, chosen, that are drawn."""
_STRETCHES = 5
"""Stretches that the ticks of an axis mark off."""
_AFTER, _PAUSE = 20.0, 12.0
"""Px after the end of the axis, and of a pause on it."""
_LIVES = ("waited", "completed", "tensor_died", "storage_died")


@dataclass(frozen=True)
class OperationRow:
    """One operation in words."""

    step: int
    turn: int
    tensor: str
    """`2 of 2`, "" where it is alone."""
    what: str
    """`send to 1 tag 3`"""
    size: str
    issued_at: str
    issued: str
    """Into the program's own time since the drawing's left edge."""
    lives: tuple[str, ...]
    """When it was waited for and completed, and when its tensor and its memory died, from its issue on."""


@dataclass(frozen=True)
class Timeline:
    """One rank's drawing and what it leaves out."""

    svg: str
    rows: tuple[OperationRow, ...]
    """What is drawn, in its order."""
    steps: tuple[int, ...]
    left_out: int
    """Operations of the shown steps that found no room."""
    alive: int
    """Operations of the shown steps whose storage was alive when the run ended."""
    paused: float
    """Seconds of leakscope's own that the axis leaves out."""


def timeline(operations: Sequence[CommOperation], ends: Sequence[StepEnd] = ()) -> Timeline | None:
    """The operations of at most two steps, turn by turn; None where none was timed. `ends` are those of the steps.

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
            f"{len(shown)} operations of steps {shown[0].step} to {shown[-1].step}, the table has them in words",
        ),
        rows=tuple(_row(row, turns[row.id], time, ends) for row in shown),
        steps=steps,
        left_out=len(chosen) - len(shown),
        alive=sum(_moment(row.storage_died) is None for row in chosen),
        paused=sum(b - a for a, b in time.pauses),
    )


def _end(shown: Sequence[CommOperation], later: float | None) -> float:
    """Right edge: the last event shown, but not far beyond the step after the last one shown, which begins later."""
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
    """A line, and leakscope's pause as a gap in the axis."""
    title = f"step {end.step} ends"
    if (end.moment, end.resumed) in time.pauses:
        title += f"; {seconds_text(end.resumed - end.moment)} of leakscope's own are left out"
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
        label=f"{_what(row)}{_tensor(turn, ' {}', '/')}  {bytes_text(row.bytes)}",
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
        what=_what(row),
        size=bytes_text(row.bytes),
        issued_at=row.issued_at,
        issued=seconds_text(time.own(row.issued)),
        lives=tuple(
            "not seen" if moment is None else f"+{seconds_text(own_seconds(row.issued, moment, ends))}"
            for moment in lives
        ),
    )


def _what(row: CommOperation) -> str:
    peer = row.source if row.peer is None else row.peer  # of a receive from anybody: who sent it
    direction = one_line(row.direction)[:12]
    towards = "" if peer is None else f" {'from' if direction.startswith(('recv', 'irecv')) else 'to'} {peer}"[:10]
    return f"{direction}{towards}" + ("" if row.tag is None else f" tag {row.tag}"[:12])


def _tensor(turn: Turn, words: str, of: str = " of ") -> str:
    return words.format(f"{turn.tensor}{of}{turn.tensors}") if turn.tensors > 1 else ""


def _tooltip(row: CommOperation) -> str:
    sizes = ", ".join(map(str, row.shape))
    return f"{row.dtype}[{sizes}] group {row.group}, issued at {row.issued_at or 'unknown place'}"


def _moment(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
