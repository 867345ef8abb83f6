"""Counts that grow beside memory: descriptors, shared memory, compilations. None decides a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from leakscope.findings.counters import is_steady
from leakscope.findings.facts import RunFacts
from leakscope.run.model import Rank
from leakscope.run.rows import OTHERS, Compiled, CountsAtStep, Recompiled

Points = Sequence[tuple[int, int]]
"""(step, count), in the order of steps."""
_LEAST = 8
"""Descriptors or segments more in all below which nothing is said; chosen."""
_LEAST_COMPILED = 3
"""Compilations more in all below which nothing is said; chosen."""
_POINTS = 4
"""Countings that tell a trend; chosen: as many rises as there are looks in the least that a leak needs."""
_BY = 3
"""Kinds of descriptors that are named; chosen."""


class Counted(StrEnum):
    """What grows; as `findings.json` has it."""

    DESCRIPTORS = "descriptors"
    SHARED_MEMORY = "shared-memory"
    COMPILED = "compiled"
    PINNED_MEMORY = "pinned-memory"
    PRIVATE_POOLS = "private-pools"


@dataclass(frozen=True, kw_only=True)
class AlsoGrows(RunFacts):
    """A count that goes on rising over the judged steps."""

    what: Counted
    from_step: int
    to_step: int
    before: int
    """What there was at the first of these steps; bytes of memory, else a number of things."""
    now: int
    by: tuple[tuple[str, int], ...] = ()
    """Kinds of descriptors, each with how many more there are, the most first."""
    limit: int | None = None
    """Descriptors that the process may have open."""
    segments: tuple[int, int] | None = None
    """Of shared memory, at the first step and at the last."""
    again: tuple[Recompiled, ...] = ()
    """Functions that were compiled again meanwhile."""
    over_limit: bool = False
    """One of them has come to dynamo's limit."""


def also_grows(rank: Rank, warmup: int, min_bytes: int) -> tuple[AlsoGrows, ...]:
    """What goes on growing on one rank after warm-up, by the test that memory counters go through; of memory what grows
    by `min_bytes` a step.
    """
    rows = [row for row in rank.counts if row.step > warmup]
    found = [*_descriptors(rows), *_shared(rows, min_bytes), *_compiled(rows), *_pinned(rows, min_bytes)]
    return tuple(replace(one, rank=rank.number) for one in (*found, *_pools(rank, warmup, min_bytes)))


def _trend(points: Points) -> bool:
    """Whether each stretch of steps has risen, and the last third lies above the first: what comes and goes, as the
    workers of an epoch, does not.
    """
    if len(points) < _POINTS:
        return False
    rises = [(b - a) / (later - step) for (step, a), (later, b) in pairwise(points) if later > step]
    third = len(points) // 3
    return is_steady(rises) and min(n for _, n in points[-third:]) >= max(n for _, n in points[:third])


def _grown(what: Counted, points: Points) -> AlsoGrows:
    (from_step, before), (to_step, now) = points[0], points[-1]
    return AlsoGrows(what=what, from_step=from_step, to_step=to_step, before=before, now=now)


def _descriptors(rows: Sequence[CountsAtStep]) -> Iterator[AlsoGrows]:
    known = [(row, row.descriptors) for row in rows if row.descriptors is not None]
    points = [(row.step, sum(kinds.values())) for row, kinds in known]
    if not _trend(points) or points[-1][1] - points[0][1] < _LEAST:
        return
    (_, first), (last, now) = known[0], known[-1]
    more = {kind: count - first.get(kind, 0) for kind, count in now.items() if kind != OTHERS}
    by = tuple(sorted(((kind, count) for kind, count in more.items() if count > 0), key=lambda one: (-one[1], one[0])))
    yield replace(_grown(Counted.DESCRIPTORS, points), by=by[:_BY], limit=last.most_descriptors)


def _shared(rows: Sequence[CountsAtStep], least: int) -> Iterator[AlsoGrows]:
    known = [(row.step, row.shared) for row in rows if row.shared is not None]
    sizes = [(step, shared.bytes) for step, shared in known]
    counts = [(step, shared.segments) for step, shared in known]
    many = _trend(counts) and counts[-1][1] - counts[0][1] >= _LEAST
    if many or _is_large(sizes, least):
        yield replace(_grown(Counted.SHARED_MEMORY, sizes), segments=(counts[0][1], counts[-1][1]))


def _compiled(rows: Sequence[CountsAtStep]) -> Iterator[AlsoGrows]:
    """What is compiled again and again; also where that has stopped because dynamo has given it up."""
    known = [(row.step, row.compiled) for row in rows if row.compiled is not None]
    points = [(step, compiled.functions) for step, compiled in known]
    if len(points) < _POINTS or points[-1][1] - points[0][1] < _LEAST_COMPILED:
        return
    (_, first), (_, last) = known[0], known[-1]
    gave_up = last.over_limit and not first.over_limit
    if _trend(points) or gave_up:
        yield replace(_grown(Counted.COMPILED, points), again=_again(first, last), over_limit=gave_up)


def _again(first: Compiled, last: Compiled) -> tuple[Recompiled, ...]:
    before = {(one.name, one.at): one.times for one in first.again}
    return tuple(one for one in last.again if one.times > before.get((one.name, one.at), 0))


def _pinned(rows: Sequence[CountsAtStep], least: int) -> Iterator[AlsoGrows]:
    points = [(row.step, row.pinned_bytes) for row in rows if row.pinned_bytes is not None]
    if _is_large(points, least):
        yield _grown(Counted.PINNED_MEMORY, points)


def _pools(rank: Rank, warmup: int, least: int) -> Iterator[AlsoGrows]:
    """Pools of captured graphs and of `torch.cuda.MemPool`, of all devices together."""
    rows = [row for row in rank.device_steps if row.step > warmup and row.layout is not None]
    points = [(row.step, sum(device.private for device in row.layout or ())) for row in rows]
    if _is_large(points, least):
        yield _grown(Counted.PRIVATE_POOLS, points)


def _is_large(points: Points, least: int) -> bool:
    if not _trend(points):
        return False
    (from_step, before), (to_step, now) = points[0], points[-1]
    return now - before >= least * (to_step - from_step)
