"""Is there memory that the allocator counts and no storage explains? A growing gap is never silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.findings.facts import Facts
from leakscope.findings.grouping.arrays import array_bytes
from leakscope.findings.grouping.bounds import went_on
from leakscope.findings.grouping.growth import MIN_LOOKS, series
from leakscope.findings.kinds import FreedBy, RuleName, Severity
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming.trace import fingerprint
from leakscope.graph.model import KINDS, ObjectKind
from leakscope.record.model import Look, Rank

_OVERHEAD = 0.1
"""Leaked tensors take their grad nodes, dicts and frames along, which the allocator counts and no storage explains."""

_MOST_A_SHAPE = 4 << 20
"""Bytes that a new shape in each step may cost: up to 2.8 MiB were measured, of a small convolutional net in
bfloat16.
"""


@dataclass(frozen=True)
class UnattributedFacts(Facts):
    """Counted memory that runs away from what storages explain."""

    per_step: float
    """Bytes a step."""
    grown: int
    """Bytes in all."""
    is_steady: bool
    shapes_are_new: bool
    """Each look saw shapes that none had seen before, on the host."""
    on_host: bool


def gap_findings(rank: Rank, looks: Sequence[Look], min_bytes: int) -> list[Finding]:
    """A native-hold finding when counted bytes run away from explained bytes at every look."""
    on = looks[-1].counted_on if looks else "cpu"
    counted = [look for look in looks if look.counted_bytes is not None and look.counted_on == on]
    known = {look.step: look.explained_bytes + (array_bytes(look) if on == "cpu" else 0) for look in counted}
    gap = {look.step: max((look.counted_bytes or 0) - known[look.step], 0) for look in counted}
    steps = _since_last_fall(sorted(gap), gap)
    line, explained = series(steps, gap), series(steps, known)
    if not line.grew_lately or not line.is_leak(min_bytes) or line.total <= _OVERHEAD * explained.total:
        return []
    grown = line.bytes[-1] - line.bytes[0]
    enough = len(line.steps) > MIN_LOOKS  # three counts, of whatever else the process does, rise one time in six
    shapes = on == "cpu" and line.per_step <= _MOST_A_SHAPE and _shapes_are_new(counted)
    finding = Finding(
        rule=RuleName.NATIVE_HOLD,
        facts=UnattributedFacts(line.per_step, grown, line.steady, shapes, on == "cpu"),
        fingerprint=fingerprint(("native-hold", "gap")),
        # what compiles, or first uses a library, rises once
        severity=Severity.LEAK
        if line.steady and enough and not shapes and went_on(rank, line, line.per_step)
        else Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=grown,
        bytes_per_step=line.per_step,
        trace=(),
        cut=None,
        sightings=tuple(
            Sighting(rank.number, step, size - line.bytes[0]) for step, size in zip(line.steps, line.bytes, strict=True)
        ),
    )
    return [finding]


def _since_last_fall(steps: list[int], gap: Mapping[int, int]) -> list[int]:
    """The steps of the looks after the gap fell for the last time, where enough are left to judge by.

    What is let go of once, the memory of a start or of a step that was watched, hides no growth after it.
    """
    falls = [place for place, (before, after) in enumerate(pairwise(steps), 1) if gap[after] < gap[before]]
    later = steps[falls[-1] :] if falls else steps
    return later if len(later) > MIN_LOOKS else steps


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
