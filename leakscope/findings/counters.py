"""Trends of the counters at the end of every step: memory, descriptors, compilations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import mean, median

from leakscope.findings.facts import RunFacts
from leakscope.run.model import Rank, Step
from leakscope.run.rows import OTHERS, Compiled, CountsAtStep, LifetimesUnjudged, Occasion, Recompiled, WatchedStep

_MIN_RISES = 3
"""Minimum steps for a rate: two rises may both be of one buffer that is allocated and grown once. At 6 a `--steps 12`
run, half of whose steps are watched or follow a heap snapshot, would have no rate.
"""
_MIN_UNDISTURBED_STEPS = 6
"""Undisturbed steps from which on disturbed ones are left out. A `--steps 12` run has four to six of them; at 3 only
three equal rises of a transient buffer might remain, at 12 the rises of our own snapshots count in every short run.
"""
_MAX_STRETCHES = 5
"""Stretches of steps whose median is the rate. With five, two with a single large rise (a compilation, first use of a
library) do not affect it; with three only one may, and with ten a stretch of a 30-step run is too short to average
out transient buffers.
"""
_MIN_STRETCH_SHARE = 0.25
"""Share of the median rate that each stretch of a steady growth reaches. Heuristic: growth every fourth step has
stretches of 0.75 to 1.5 times the median; at 0.5 a stretch with one collection counts as a stop, at 0.1 a rise that
ended after the third stretch counts as steady.
"""
_MIN_LEVEL_SHARE = 0.5
"""Minimum share of the rate by which the levels of few steps must have risen. Heuristic: transient memory has 0, growth
about 1; at 0.25 noise of a quarter of the rate is growth, at 1 half of the real growth is dropped.
"""
_STEPS_AROUND_WATCHED = (-1, 0, 1)
"""Steps around a watched one whose rises are leakscope's: the step before it is watched too, and the records of both
are released in the one after it. Measured: +3,882 KiB in the first two, -3,734 KiB in the third, for a leak of 256
KiB.
"""
_EACH_STEP = (0.5, 0.75)
"""Share of the rate by which a step rises, and share of steps that do, for growth at every step: it has all of them,
growth at every second step half.
"""
_IN_A_ROW = 0.5
"""Share of consecutive steps at which both rise: none for growth at every second step, though three of the four
undisturbed steps may be rises.
"""
_MAX_TIMED_STEPS = 20
"""Steps at each end whose median time is compared. Heuristic: a median of three varies on a busy machine, and one of
two hundred mixes the steps of a run in which each is slower than the previous one.
"""
_MIN_SLOWDOWN = 1.25
"""Minimum ratio of the last steps' time to report slower steps. Heuristic: at 1.1 a busy machine triggers it, at 2 a
pile of hooks is reported only after doubling the step time.
"""


_LATE_STEPS = 24
"""Steps after the last heap snapshot whose later half is long enough to show growth that began after it. At 12 a part
of it is three steps, over which buffers come and go; at 100 a leak that begins in the middle of 100 steps is missed.
"""
_LATE_EVEN = 0.5
"""Minimum share of the fastest quarter that each quarter of a late growth reaches. Measured in recorded runs: five
leaks 0.75 to 0.99; seven healthy trainings with so many steps have a quarter that does not rise. At 0.9 a leak of
unlike tensors is missed, at 0.1 one rise among constant steps is growth.
"""
_LATE_BYTES = 1024
"""Minimum bytes per step of a late growth to recommend more steps: a kept loss takes 3,300 with its graph, a float in a
list 32.
"""


def counted_steps(rank: Rank) -> list[Step]:
    """Steps whose counted bytes are of the device counted last."""
    counted = [step for step in rank.steps if step.counted_bytes is not None]
    return [step for step in counted if step.counted_on == counted[-1].counted_on]


def counted_rate(rank: Rank, warmup: int) -> float | None:
    """Bytes per step after warm-up: the median over stretches of steps; None if too few were counted.

    A single rise, at a compilation or the first use of a library, affects a mean but not this.
    """
    rises = _rises(rank, warmup)
    stretches = _stretches(rises)
    if not stretches:
        return None
    rate, at_most = median(stretches), _at_most(rank, warmup)
    return at_most if len(rises) < _MAX_STRETCHES * _MIN_RISES and at_most < _MIN_LEVEL_SHARE * rate else rate


def rate_at_end(rank: Rank, warmup: int) -> float | None:
    """Bytes per step as `counted_rate`, or less if the last stretch or all steps together rose less: growth that has
    stopped or is released repeatedly does not continue.
    """
    rises = _rises(rank, warmup)
    stretches = _stretches(rises)
    rate = counted_rate(rank, warmup)
    return None if rate is None else min(rate, stretches[-1], mean(rises))


def late_growth(rank: Rank, warmup: int, snapshot: int) -> tuple[Step, Step, float] | None:
    """(first step, last step, bytes per step) of growth after the last heap snapshot, which no snapshot could see.

    Args:
        rank: The recording of the rank.
        warmup: Steps that are left out.
        snapshot: The step of the last heap snapshot that growth is read from.

    Returns:
        The later half of the steps since, if each of its quarters rose about as fast; else None.

    """
    since = [step for step in counted_steps(rank) if step.number > max(warmup, snapshot + 1)]
    if len(since) < _LATE_STEPS:
        return None
    half = since[len(since) // 2 :]
    ends = [half[round((len(half) - 1) * k / 4)] for k in range(5)]
    rates = [((b.counted_bytes or 0) - (a.counted_bytes or 0)) / (b.number - a.number) for a, b in pairwise(ends)]
    if min(rates) < max(_LATE_EVEN * max(rates), _LATE_BYTES):
        return None
    return half[0], half[-1], mean(rates)


def rises_steadily(rank: Rank, warmup: int) -> bool:
    """Whether no stretch of the steps rose far less than the others."""
    return is_steady(_rises(rank, warmup))


def is_steady(rises: Sequence[float]) -> bool:
    """Whether no stretch of consecutive rises is far below the others."""
    stretches = _stretches(rises)
    return len(stretches) >= _MIN_RISES and min(stretches) >= _MIN_STRETCH_SHARE * median(stretches) > 0


def rose_each_step(rank: Rank, first: int, last: int, rate: float) -> bool:
    """Whether the counters rose by about `rate` at nearly every undisturbed step after `first`, up to `last`.

    Such growth does not have a period of several steps.
    """
    rose = {n: rise >= _EACH_STEP[0] * rate for n, rise in _undisturbed(rank, first).items() if n <= last}
    in_a_row = [rose[n] and rose[n - 1] for n in rose if n - 1 in rose]
    often = len(rose) >= _MIN_RISES and sum(rose.values()) >= _EACH_STEP[1] * len(rose)
    return often and sum(in_a_row) >= _IN_A_ROW * len(in_a_row)


def disturbed_steps(rank: Rank) -> set[int]:
    """Steps whose rises come from leakscope's records, or from garbage of the start that the first full collection
    frees.
    """
    return {number + more for number in _watched(rank) for more in _STEPS_AROUND_WATCHED} | {_first_collection(rank, 0)}


def step_times(rank: Rank, warmup: int) -> tuple[float, float] | None:
    """Median seconds of undisturbed steps after warm-up (at first, at the end); None if the last steps
    took no longer.
    """
    ours = {number + more for number in _watched(rank) for more in _STEPS_AROUND_WATCHED}
    ours |= {
        snapshot.step + 1 for snapshot in rank.heap_snapshots
    }  # the caches of the processor are cold after a snapshot
    seconds = [step.seconds for step in rank.steps if step.number > warmup and step.number not in ours]
    few = min(len(seconds) // 3, _MAX_TIMED_STEPS)
    if few < _MIN_RISES:
        return None
    first, last = median(seconds[:few]), median(seconds[-few:])
    return (first, last) if last >= _MIN_SLOWDOWN * first else None


def _at_most(rank: Rank, warmup: int) -> float:
    """Bytes per step by which the later half of the steps is higher than the earlier one, or 0.

    With few steps, all undisturbed ones may be rises of transient memory, such as a thread's buffers. Levels raised by
    leakscope's records, or by garbage of the start before it is collected, are left out if enough others remain.
    """
    counted = [step for step in counted_steps(rank) if step.number > warmup]
    ours = {number + more for number in _watched(rank) for more in _STEPS_AROUND_WATCHED[:2]}
    start = _first_collection(rank, warmup)
    plain = [step.counted_bytes or 0 for step in counted if step.number not in ours]
    later = [step.counted_bytes or 0 for step in counted if step.number not in ours and step.number >= start]
    everything = [step.counted_bytes or 0 for step in counted]
    sizes = next((some for some in (later, plain) if len(some) >= _MIN_UNDISTURBED_STEPS), everything)
    half = len(sizes) // 2
    return max(max(sizes[half:]) - max(sizes[:half]), 0) / half


def _rises(rank: Rank, warmup: int) -> list[int]:
    """Rise of the counted bytes at each step after warm-up, without disturbed ones if enough remain."""
    unwatched = _undisturbed(rank, warmup)
    after_snapshot = {
        snapshot.step + 1 for snapshot in rank.heap_snapshots
    }  # what a snapshot leaves is counted at the end of the next step
    after_snapshot.add(_first_collection(rank, warmup))
    plain = {number: rise for number, rise in unwatched.items() if number not in after_snapshot}
    for some in (plain, unwatched):
        if len(some) >= _MIN_UNDISTURBED_STEPS:
            return list(some.values())
    return list((unwatched if len(unwatched) >= _MIN_RISES else _all_rises(rank, warmup)).values())


def _all_rises(rank: Rank, warmup: int) -> dict[int, int]:
    """Rise of the counted bytes at each step after warm-up, by step number."""
    counted = [step for step in counted_steps(rank) if step.number > warmup]
    return {
        b.number: (b.counted_bytes or 0) - (a.counted_bytes or 0)
        for a, b in pairwise(counted)
        if b.number == a.number + 1  # the row of a step may be damaged
    }


def _undisturbed(rank: Rank, warmup: int) -> dict[int, int]:
    """The rises unaffected by watched steps."""
    disturbed = {number + more for number in _watched(rank) for more in _STEPS_AROUND_WATCHED}
    return {number: rise for number, rise in _all_rises(rank, warmup).items() if number not in disturbed}


def _watched(rank: Rank) -> set[int]:
    """Steps that were watched storage by storage."""
    watched = {row.step for row in rank.lifetimes if isinstance(row, WatchedStep | LifetimesUnjudged)}
    return watched | {snapshot.step + 1 for snapshot in rank.heap_snapshots if snapshot.occasion == Occasion.PEAK}


def _first_collection(rank: Rank, warmup: int) -> int:
    """The first step after warm-up in which the program's full collection freed memory, 0 if there was none.

    It frees the garbage of the start (imports, construction of the model), which no later one finds again.
    """
    freed = (
        step.number
        for step in rank.steps
        if step.number > warmup and any(c.is_full and (c.freed_bytes or 0) > 0 for c in step.collections)
    )
    return next(freed, 0)


def _stretches(rises: Sequence[float]) -> list[float]:
    """Mean rise of each stretch, of about equal lengths; of each step if there are few."""
    if len(rises) < _MIN_RISES:
        return []
    count = min(_MAX_STRETCHES, len(rises) // _MIN_RISES)
    if count < _MIN_RISES:
        return [float(rise) for rise in rises]
    ends = [round(len(rises) * k / count) for k in range(count + 1)]
    return [mean(rises[a:b]) for a, b in pairwise(ends)]


Points = Sequence[tuple[int, int]]
"""(step, count), in the order of steps."""
_MIN_MORE_DESCRIPTORS = 8
"""Minimum additional descriptors or segments to report. Heuristic."""
_MIN_COMPILED = 3
"""Minimum additional compilations to report. Heuristic."""
_MIN_TREND_COUNTS = 4
"""Minimum counts for a trend. Heuristic: as many rises as a leak needs snapshots."""
_MAX_NAMED_KINDS = 3
"""Kinds of descriptors named. Heuristic."""


class CountKind(StrEnum):
    """The kind of a growing count, as in `findings.json`."""

    DESCRIPTORS = "descriptors"
    SHARED_MEMORY = "shared-memory"
    COMPILED = "compiled"
    PINNED_MEMORY = "pinned-memory"
    PRIVATE_POOLS = "private-pools"


@dataclass(frozen=True, kw_only=True)
class AlsoGrows(RunFacts):
    """A count that keeps rising over the judged steps."""

    what: CountKind
    from_step: int
    to_step: int
    before: int
    """Value at the first of these steps; bytes of memory, else a number of things."""
    now: int
    by: tuple[tuple[str, int], ...] = ()
    """Kinds of descriptors, each with its increase, the largest first."""
    limit: int | None = None
    """Limit of open descriptors of the process."""
    segments: tuple[int, int] | None = None
    """Shared memory segments at the first step and at the last."""
    again: tuple[Recompiled, ...] = ()
    """Functions that were recompiled meanwhile."""
    over_limit: bool = False
    """Whether one of them has reached dynamo's limit."""


def also_grows(rank: Rank, warmup: int, min_per_step: int) -> tuple[AlsoGrows, ...]:
    """Counts that keep growing on one rank after warm-up, by the same test as memory counters; memory only from
    `min_per_step` bytes on.
    """
    rows = [row for row in rank.counts if row.step > warmup]
    found = [*_descriptors(rows), *_shared(rows, min_per_step), *_compiled(rows), *_pinned(rows, min_per_step)]
    return tuple(replace(one, rank=rank.number) for one in (*found, *_pools(rank, warmup, min_per_step)))


def _trend(points: Points) -> bool:
    """Whether each stretch of steps has risen, and the last third is above the first: transient counts, like the
    workers of an epoch, do not qualify.
    """
    if len(points) < _MIN_TREND_COUNTS:
        return False
    rises = [(b - a) / (later - step) for (step, a), (later, b) in pairwise(points) if later > step]
    third = len(points) // 3
    return is_steady(rises) and min(n for _, n in points[-third:]) >= max(n for _, n in points[:third])


def _grown(what: CountKind, points: Points) -> AlsoGrows:
    (from_step, before), (to_step, now) = points[0], points[-1]
    return AlsoGrows(what=what, from_step=from_step, to_step=to_step, before=before, now=now)


def _descriptors(rows: Sequence[CountsAtStep]) -> Iterator[AlsoGrows]:
    known = [(row, row.descriptors) for row in rows if row.descriptors is not None]
    points = [(row.step, sum(kinds.values())) for row, kinds in known]
    if not _trend(points) or points[-1][1] - points[0][1] < _MIN_MORE_DESCRIPTORS:
        return
    (_, first), (last, now) = known[0], known[-1]
    more = {kind: count - first.get(kind, 0) for kind, count in now.items() if kind != OTHERS}
    by = tuple(sorted(((kind, count) for kind, count in more.items() if count > 0), key=lambda one: (-one[1], one[0])))
    yield replace(_grown(CountKind.DESCRIPTORS, points), by=by[:_MAX_NAMED_KINDS], limit=last.most_descriptors)


def _shared(rows: Sequence[CountsAtStep], least: int) -> Iterator[AlsoGrows]:
    known = [(row.step, row.shared) for row in rows if row.shared is not None]
    sizes = [(step, shared.bytes) for step, shared in known]
    counts = [(step, shared.segments) for step, shared in known]
    many = _trend(counts) and counts[-1][1] - counts[0][1] >= _MIN_MORE_DESCRIPTORS
    if many or _is_large(sizes, least):
        yield replace(_grown(CountKind.SHARED_MEMORY, sizes), segments=(counts[0][1], counts[-1][1]))


def _compiled(rows: Sequence[CountsAtStep]) -> Iterator[AlsoGrows]:
    """Functions that are recompiled repeatedly, including those that dynamo has given up."""
    known = [(row.step, row.compiled) for row in rows if row.compiled is not None]
    points = [(step, compiled.functions) for step, compiled in known]
    if len(points) < _MIN_TREND_COUNTS or points[-1][1] - points[0][1] < _MIN_COMPILED:
        return
    (_, first), (_, last) = known[0], known[-1]
    gave_up = last.over_limit and not first.over_limit
    if _trend(points) or gave_up:
        yield replace(_grown(CountKind.COMPILED, points), again=_again(first, last), over_limit=gave_up)


def _again(first: Compiled, last: Compiled) -> tuple[Recompiled, ...]:
    before = {(one.name, one.at): one.times for one in first.again}
    return tuple(one for one in last.again if one.times > before.get((one.name, one.at), 0))


def _pinned(rows: Sequence[CountsAtStep], least: int) -> Iterator[AlsoGrows]:
    points = [(row.step, row.pinned_bytes) for row in rows if row.pinned_bytes is not None]
    if _is_large(points, least):
        yield _grown(CountKind.PINNED_MEMORY, points)


def _pools(rank: Rank, warmup: int, least: int) -> Iterator[AlsoGrows]:
    """Pools of captured graphs and of `torch.cuda.MemPool`, of all devices together."""
    rows = [row for row in rank.device_steps if row.step > warmup and row.layout is not None]
    points = [(row.step, sum(device.private for device in row.layout or ())) for row in rows]
    if _is_large(points, least):
        yield _grown(CountKind.PRIVATE_POOLS, points)


def _is_large(points: Points, least: int) -> bool:
    if not _trend(points):
        return False
    (from_step, before), (to_step, now) = points[0], points[-1]
    return now - before >= least * (to_step - from_step)
