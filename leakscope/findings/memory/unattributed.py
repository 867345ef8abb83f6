"""Growth that the allocator counts and no storage explains."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from leakscope.findings.counters import counted_rate, rises_steadily
from leakscope.findings.facts import Facts
from leakscope.findings.grouping.bounds import went_on
from leakscope.findings.grouping.growth import MIN_LOOKS, Series, series
from leakscope.findings.kinds import FreedBy, RuleName, Severity
from leakscope.findings.memory.balance import Balance
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming.trace import fingerprint
from leakscope.graph.model import KINDS, ObjectKind
from leakscope.record.model import Look, Rank

GAP = fingerprint(("native-hold", "gap"))
"""Of growth that nothing explains."""
OVERHEAD = 0.1
"""Leaked tensors take their grad nodes, dicts and frames along, which the allocator counts and no storage explains.
Heuristic: at half of that, lists of small graphs have a gap beside them; at twice that, a leak of a C extension a fifth
as fast as another leak is missed.
"""

_MOST_A_SHAPE = 4 << 20
"""Bytes that a new shape in each step may cost: up to 2.8 MiB were measured, of a small convolutional net in
bfloat16. At half of that such a net is accused, at twice that a leak of several MiB a step is taken for a cache.
"""
_MOST_NEW = 0.25
"""Share of the steps that must have had a shape that was new. Images of random sizes have nearly 1; of sentences of 60
lengths, drawn evenly, (1 - 1/60)**60 or 0.37 of the steps are new after 60, and 0.13 after 120.
"""
CACHED_SHAPES = 1024
"""Shapes that oneDNN and ideep keep kernels for, unless ONEDNN_PRIMITIVE_CACHE_CAPACITY and LRU_CACHE_CAPACITY say
otherwise (oneDNN, developer guide, "Primitive Cache"; ideep, lru_cache.hpp).
"""

_CLASSES = 3
"""Classes that are named beside memory without a holder; more would be a listing."""


@dataclass(frozen=True)
class UnattributedFacts(Facts):
    """Counted memory that runs away from what storages explain."""

    SUMMED = ("per_step", "grown")

    per_step: float
    """Bytes a step."""
    grown: int
    """Bytes in all."""
    is_steady: bool
    shapes_are_new: bool
    """Shapes were new in many of the steps, or each look saw some that none had seen before; on the host."""
    on_host: bool
    shapes: int = 0
    """Shapes that the model was given so far; 0 where that was not recorded."""
    full_at_step: int = 0
    """The step by which the caches of oneDNN and ideep are full at that pace; 0 where that is not known."""
    came_too: tuple[tuple[str, int], ...] = ()
    """(class, how many a step) of the objects that were more at each look, the most first: what holds the memory in C++
    may hang on them.
    """


def gap_findings(
    rank: Rank, looks: Sequence[Look], balances: Sequence[Balance], warmup: int, min_bytes: int
) -> list[Finding]:
    """A native-hold finding when counted bytes run away from known bytes, by the looks and by the steps' counters."""
    told = [(look, b) for look, b in zip(looks, balances, strict=True) if b.counted_on == balances[-1].counted_on]
    told = [(look, b) for look, b in told if b.gap is not None]
    known = {b.step: b.known for _, b in told}
    gap = {b.step: max(b.gap or 0, 0) for _, b in told}
    steps = _since_last_fall(sorted(gap), gap)
    line, explained = series(steps, gap), series(steps, known)
    if not line.grew_lately or line.total <= OVERHEAD * explained.total:
        return []
    rate = min(line.per_step, _by_counters(rank, warmup, explained))
    grown = line.bytes[-1] - line.bytes[0]
    if rate < min_bytes or grown < line.floor(min_bytes):
        return []
    # three counts, of whatever else the process does, rise one time in six
    steady = (line.steady and len(line.steps) > MIN_LOOKS) or rises_steadily(rank, warmup)
    on_host = balances[-1].counted_on == "cpu"
    new = _new_shapes(rank, line.steps[0], line.steps[-1])
    many = _shapes_are_new([look for look, _ in told]) if new is None else new >= _MOST_NEW
    shapes = on_host and line.per_step <= _MOST_A_SHAPE and many
    seen = sum(step.new_shapes for step in rank.steps)
    full = rank.steps[-1].number + math.ceil(max(CACHED_SHAPES - seen, 0) / new) if shapes and new else 0
    finding = Finding(
        rule=RuleName.NATIVE_HOLD,
        facts=UnattributedFacts(
            rate, grown, line.steady, shapes, on_host, seen, full, _came_too([look for look, _ in told])
        ),
        fingerprint=GAP,
        # what compiles, or first uses a library, rises once
        severity=Severity.LEAK if steady and not shapes and went_on(rank, line, line.per_step) else Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=grown,
        bytes_per_step=rate,
        trace=(),
        cut=None,
        sightings=tuple(
            Sighting(rank.number, step, size - line.bytes[0]) for step, size in zip(line.steps, line.bytes, strict=True)
        ),
    )
    return [finding]


def _came_too(looks: Sequence[Look]) -> tuple[tuple[str, int], ...]:
    """Classes, but for Python's own, of which there were more at each look, by at least one a step."""
    steps = max(looks[-1].step - looks[0].step, 1)
    own = (name for name in looks[-1].types if "." in name and name.partition(".")[0] not in sys.stdlib_module_names)
    counts = {name: [look.types.get(name, 0) for look in looks] for name in own}
    rates = {
        name: round((seen[-1] - seen[0]) / steps)
        for name, seen in counts.items()
        if all(before < after for before, after in pairwise(seen))
    }
    most = sorted((name for name, rate in rates.items() if rate), key=lambda name: (-rates[name], name))
    return tuple((name, rates[name]) for name in most[:_CLASSES])


def _by_counters(rank: Rank, warmup: int, known: Series) -> float:
    """Bytes a step that the counters of all steps show beyond what is known; without end where they tell nothing."""
    rate = counted_rate(rank, warmup)
    return inf if rate is None else rate - (known.bytes[-1] - known.bytes[0]) / max(known.steps[-1] - known.steps[0], 1)


def _since_last_fall(steps: list[int], gap: Mapping[int, int]) -> list[int]:
    """The steps of the looks after the gap fell for the last time, where enough are left to judge by.

    What is let go of once, the memory of a start or of a step that was watched, hides no growth after it.
    """
    falls = [place for place, (before, after) in enumerate(pairwise(steps), 1) if gap[after] < gap[before]]
    later = steps[falls[-1] :] if falls else steps
    return later if len(later) > MIN_LOOKS else steps


def _new_shapes(rank: Rank, first: int, last: int) -> float | None:
    """Share of the steps between two looks in which the model was given a shape that was new; None where that was not
    recorded.
    """
    steps = [step for step in rank.steps if first < step.number <= last]
    told = [step for step in steps if step.input_elements is not None]
    return sum(step.new_shapes > 0 for step in told) / len(told) if told else None


def _shapes_are_new(looks: Sequence[Look]) -> bool:
    """Whether each look but the first saw a tensor of a type and shape that none had seen before."""
    known: set[str] = set()
    for place, look in enumerate(looks):
        graph = look.heap
        labels = {graph.strings[k] for k in graph.label[graph.kind == KINDS.index(ObjectKind.TENSOR)].tolist()}
        if place and labels <= known:
            return False
        known |= labels
    return True
