"""What garbage collections freed and cost, and whether fewer would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakscope.findings.facts import FreedBy, RunFacts, Severity
from leakscope.findings.model import Finding
from leakscope.run.model import Collection, GcDiff, Rank, Run
from leakscope.run.rows import GcFreeze

YOUNG_SHARE = 0.9
"""Share of a full collection's bytes from which collecting young objects is equivalent. Heuristic."""
COSTLY_SHARE = 0.01
"""Share of the steps' time from which the program's full collections are reported. Heuristic."""
FULL = 2
"""The oldest generation (`gc.collect`'s argument)."""
_YOUNG = (0, 1)


@dataclass(frozen=True)
class Collected:
    """What collections of one generation freed, and their cost."""

    generation: int
    freed_bytes: int
    seconds: float
    collections: int = 1


@dataclass(frozen=True, kw_only=True)
class OwnCollections(RunFacts):
    """What the program's own collections freed, and their cost, in the steps after the first."""

    steps: int
    by_generation: tuple[Collected, ...]
    """Full ones, and those of younger generations that freed anything."""
    seconds: float
    """Seconds of all of them, including those that freed nothing."""
    steps_seconds: float


@dataclass(frozen=True, kw_only=True)
class CollectedAtEnd(RunFacts):
    """What the collection at the end freed, by generation."""

    by_generation: tuple[Collected, ...]
    full_collections: int
    """Number of full collections until nothing more was freed."""


@dataclass(frozen=True, kw_only=True)
class YoungSuffices(RunFacts):
    """Collecting young objects frees nearly all that a full collection does."""

    generation: int
    freed_bytes: int
    all_bytes: int
    seconds: float
    full_seconds: float


@dataclass(frozen=True, kw_only=True)
class FullEachStep(RunFacts):
    """The cost of a full collection after every step."""

    step_seconds: float
    """Duration of a typical step."""
    times: float
    """Factor by which a step would be longer."""


@dataclass(frozen=True, kw_only=True)
class FreezeSaves(RunFacts):
    """The effect of gc.freeze() after warm-up on full collections: most objects exist from the start."""

    full_seconds: float
    """Duration of a typical one."""
    share: float | None
    """Share of the steps' time; None if the program's own are not reported."""
    early_objects: int
    """Objects that existed at the first snapshot."""
    objects: int
    step: int
    """Step of the first snapshot."""
    measured: GcFreeze | None
    frozen_seconds: float
    """Duration with frozen objects; 0.0 if it was not measured."""


@dataclass(frozen=True, kw_only=True)
class CutsInstead(RunFacts):
    """The effect of cutting the references of cycles instead of collecting."""

    references: int
    where: tuple[str, ...]
    bytes_per_step: float


def gc_advice(run: Run, findings: Sequence[Finding]) -> tuple[RunFacts, ...]:
    """Facts of each rank, then the effect of cutting the references instead; () if gc frees no tensor memory."""
    facts = [fact for rank in run.ranks for fact in _of_rank(rank)]
    cyclic = [f for f in findings if f.freed_by == FreedBy.GC and f.severity == Severity.LEAK and f.cut is not None]
    if cyclic:
        cuts = [reference for f in cyclic if f.cut is not None for reference in f.cut.references]
        where = tuple(dict.fromkeys(reference.where for reference in cuts if reference.where))
        rate = sum(f.bytes_per_step for f in cyclic)
        facts.append(CutsInstead(references=len(cuts), where=where, bytes_per_step=rate))
    return tuple(facts)


def _of_rank(rank: Rank) -> list[RunFacts]:
    # mostly imports before the end of the first step
    rank = replace(rank, steps=rank.steps[1:])
    own = [collection for step in rank.steps for collection in step.collections]
    return [*_programs(rank, own), *_measured(rank), *_freeze(rank, own)]


def _programs(rank: Rank, own: Sequence[Collection]) -> list[RunFacts]:
    """What the program's own collections freed, and their cost."""
    kinds = []
    for generation in (*_YOUNG, FULL):
        mine = [c for c in own if c.generation == generation]
        freed = sum(c.freed_bytes or 0 for c in mine)
        if mine and (freed or generation == FULL):
            kinds.append(Collected(generation, freed, sum(c.seconds for c in mine), len(mine)))
    if not kinds:
        return []
    running = sum(step.seconds for step in rank.steps)
    return [
        OwnCollections(
            rank=rank.number,
            steps=len(rank.steps),
            by_generation=tuple(kinds),
            seconds=sum(c.seconds for c in own),
            steps_seconds=running,
        )
    ]


def _measured(rank: Rank) -> list[RunFacts]:
    """What the collection at the end freed, and the effect of collecting less or more."""
    diff = rank.gc_diff
    if diff is None or sum(diff.freed_bytes) == 0 or len(diff.freed_bytes) <= FULL:
        return []
    full = Collected(FULL, sum(diff.freed_bytes[FULL:]), sum(diff.seconds[FULL:]))
    young = (Collected(generation, diff.freed_bytes[generation], diff.seconds[generation]) for generation in _YOUNG)
    facts: list[RunFacts] = [
        CollectedAtEnd(rank=rank.number, by_generation=(*young, full), full_collections=diff.collections)
    ]
    facts += _young_suffices(rank.number, diff)
    step = _typical([s.seconds for s in rank.steps])
    if step:
        facts.append(FullEachStep(rank=rank.number, step_seconds=step, times=1 + diff.seconds[FULL] / step))
    return facts


def _young_suffices(rank: int, diff: GcDiff) -> list[RunFacts]:
    total = sum(diff.freed_bytes)
    for generation in _YOUNG:
        freed = sum(diff.freed_bytes[: generation + 1])
        if freed >= YOUNG_SHARE * total:
            return [
                YoungSuffices(
                    rank=rank,
                    generation=generation,
                    freed_bytes=freed,
                    all_bytes=total,
                    seconds=sum(diff.seconds[: generation + 1]),
                    full_seconds=sum(diff.seconds[: FULL + 1]),
                )
            ]
    return []


def _freeze(rank: Rank, own: Sequence[Collection]) -> list[RunFacts]:
    """Whether gc.freeze() after warm-up would make full collections cheap."""
    snapshots = [snapshot for snapshot in rank.heap_snapshots if snapshot.objects]
    full = [c for c in own if c.is_full]
    seconds = sum(c.seconds for c in full)
    running = sum(step.seconds for step in rank.steps)
    wanted = bool(full) and running > 0 and seconds >= COSTLY_SHARE * running
    freed = rank.gc_diff is not None and sum(rank.gc_diff.freed_bytes[FULL:]) > 0
    if not snapshots or not (wanted or freed):
        return []
    first, last = snapshots[0].objects, snapshots[-1].objects
    measured = rank.gc_freezes[-1] if rank.gc_freezes else None
    return [
        FreezeSaves(
            rank=rank.number,
            full_seconds=_typical([c.seconds for c in full]) or (rank.gc_diff.seconds[FULL] if rank.gc_diff else 0.0),
            share=seconds / running if wanted else None,
            early_objects=min(first, last),
            objects=last,
            step=snapshots[0].step,
            measured=measured,
            frozen_seconds=_when_frozen(measured, first, last) if measured is not None else 0.0,
        )
    ]


def _when_frozen(measured: GcFreeze, first: int, last: int) -> float:
    """Seconds of a full collection over objects created since the first snapshot only."""
    saved = max(measured.full_seconds - measured.frozen_seconds, 0.0)
    return measured.frozen_seconds + saved * max(last - first, 0) / last


def _typical(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
