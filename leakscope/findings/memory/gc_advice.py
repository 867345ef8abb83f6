"""What did collecting free, what did it cost, and would less of it do?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.model import Finding, FreedBy, Severity
from leakscope.record.model import Collection, Rank, Run
from leakscope.units import bytes_text, seconds_text

YOUNG_SHARE = 0.9
"""Share of a full collection's bytes from which collecting young objects does the same."""
COSTLY_SHARE = 0.01
"""Share of the steps' time from which the program's full collections are worth a word."""
FULL = 2


def gc_advice(run: Run, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Sentences for each rank, then what cutting the references would do instead; () where gc frees no tensor
    memory.
    """
    told: list[str] = []
    for rank in run.ranks:
        told += _of_rank(rank)
    cyclic = [f for f in findings if f.freed_by == FreedBy.GC and f.severity == Severity.LEAK]
    if cyclic:
        rate = sum(f.bytes_per_step for f in cyclic)
        cuts = [f.cut for f in cyclic if f.cut is not None]
        where = ", ".join(dict.fromkeys(cut.where for cut in cuts if cut.where))
        told.append(
            f"Cutting {'the reference' if len(cuts) == 1 else f'the {len(cuts)} references'} named above"
            f"{f' ({where})' if where else ''} frees the same {bytes_text(rate)} a step at once and costs nothing."
        )
    return tuple(told)


def _of_rank(rank: Rank) -> list[str]:
    # what came before the end of the first step is mostly imports
    rank = replace(rank, steps=rank.steps[1:])
    own = [(step.number, c) for step in rank.steps for c in step.collections]
    return [f"Rank {rank.number}: {text}" for text in (*_programs(rank, own), *_measured(rank), *_freeze(rank, own))]


def _programs(rank: Rank, own: Sequence[tuple[int, Collection]]) -> list[str]:
    """What the program's own collections freed and cost."""
    found = []
    for generation in (0, 1, FULL):
        mine = [c for _, c in own if c.generation == generation]
        freed = sum(c.freed_bytes or 0 for c in mine)
        if mine and (freed or generation == FULL):
            seconds = sum(c.seconds for c in mine)
            found.append(f"{len(mine)} of generation {generation} freed {bytes_text(freed)} in {seconds_text(seconds)}")
    if not found:
        return []
    seconds, running = sum(c.seconds for _, c in own), sum(step.seconds for step in rank.steps)
    share = f", {seconds / running:.0%} of its time" if running else ""
    text = f"the program's own collections in the {len(rank.steps)} steps after the first: {', '.join(found)}"
    return [f"{text}; that is {seconds_text(seconds / len(rank.steps))} a step{share}."]


def _measured(rank: Rank) -> list[str]:
    """What collecting freed at the end, generation by generation."""
    diff = rank.gc_diff
    if diff is None or sum(diff.freed_bytes) == 0 or len(diff.freed_bytes) <= FULL:
        return []
    parts = [f"generation {g} {bytes_text(diff.freed_bytes[g])} in {seconds_text(diff.seconds[g])}" for g in (0, 1)]
    full = sum(diff.freed_bytes[FULL:])
    full_seconds = sum(diff.seconds[FULL:])
    parts.append(f"generation 2 {bytes_text(full)} in {seconds_text(full_seconds)}")
    more = f", {diff.collections} full collections one after another" if diff.collections > 1 else ""
    told = [f"collecting at the end freed: {', '.join(parts)}{more}."]
    total = sum(diff.freed_bytes)
    for generation in (0, 1):
        if sum(diff.freed_bytes[: generation + 1]) >= YOUNG_SHARE * total:
            seconds = sum(diff.seconds[: generation + 1])
            told.append(
                f"gc.collect({generation}) would free {bytes_text(sum(diff.freed_bytes[: generation + 1]))} of these "
                f"{bytes_text(total)} for {seconds_text(seconds)} instead of "
                f"{seconds_text(sum(diff.seconds[: FULL + 1]))}."
            )
            break
    step = _typical([s.seconds for s in rank.steps])
    if step:
        cost = diff.seconds[FULL] / step
        told.append(
            f"a full collection after every step would make a step of {seconds_text(step)} "
            f"{1 + cost:.1f} times as long."
        )
    return told


def _freeze(rank: Rank, own: Sequence[tuple[int, Collection]]) -> list[str]:
    """Whether gc.freeze() after warm-up would make full collections cheap: most objects are there from the start."""
    looks = [look for look in rank.looks if look.objects]
    full = [c for _, c in own if c.generation == FULL]
    seconds = sum(c.seconds for c in full)
    running = sum(step.seconds for step in rank.steps)
    wanted = bool(full) and running > 0 and seconds >= COSTLY_SHARE * running
    freed = rank.gc_diff is not None and sum(rank.gc_diff.freed_bytes[FULL:]) > 0
    if not looks or not (wanted or freed):
        return []
    first, last = looks[0].objects, looks[-1].objects
    once = _typical([c.seconds for c in full]) or (rank.gc_diff.seconds[FULL] if rank.gc_diff else 0.0)
    share = f", {seconds / running:.0%} of the steps' time" if wanted else ""
    text = (
        f"a full collection takes {seconds_text(once)}{share}; {min(first, last):,} of its {last:,} objects are there "
        f"since step {looks[0].step}, and gc.freeze() after warm-up leaves those out"
    )
    measured = rank.gc_freezes
    if not measured:
        return [f"{text}; what that saves was not measured (--steps N or --gc-diff always does)."]
    whole, frozen = (measured[-1].full_seconds, measured[-1].frozen_seconds)
    left = frozen + max(whole - frozen, 0.0) * max(last - first, 0) / last
    ends = f"{seconds_text(whole)} with every object in it, {seconds_text(frozen)} with every object frozen"
    return [f"{text}: about {seconds_text(left)} instead (measured: {ends})."]


def _typical(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
