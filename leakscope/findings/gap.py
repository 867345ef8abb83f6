"""Is there memory that the allocator counts and no storage explains? A growing gap is never silence."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.findings.growth import series
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.trace import fingerprint
from leakscope.record import Look, Rank
from leakscope.units import bytes_text

_OVERHEAD = 0.1
"""Leaked tensors take their grad nodes, dicts and frames along, which the allocator counts and no storage explains."""


def gap_findings(rank: Rank, looks: Sequence[Look], min_bytes: int) -> list[Finding]:
    """A native-hold finding when counted bytes run away from explained bytes at every look."""
    counted = [look for look in looks if look.counted_bytes is not None]
    gap = {look.step: max((look.counted_bytes or 0) - look.explained_bytes, 0) for look in counted}
    line = series(sorted(gap), gap)
    explained = series(sorted(gap), {look.step: look.explained_bytes for look in counted})
    if not line.grows or not line.is_leak(min_bytes) or line.total <= _OVERHEAD * explained.total:
        return []
    grown = line.bytes[-1] - line.bytes[0]
    how = f" by {bytes_text(line.per_step)} a step" if line.steady else f", not steadily, by {bytes_text(grown)} in all"
    finding = Finding(
        rule="native-hold",
        title=f"memory that no Python object and no autograd path explains grows{how}",
        fingerprint=fingerprint(("native-hold", "gap")),
        severity="leak" if line.steady else "note",  # what compiles, or first uses a library, rises once
        freed_by="program",
        retained_bytes=grown,
        bytes_per_step=line.per_step,
        trace=(),
        cut=None,
        advice=(
            "Look for handles of asynchronous operations that are kept (Work of isend, irecv, all_reduce(async_op=True)), "
            "distributed-autograd contexts left open, an autocast region never left, or a C++ extension that caches."
        ),
        sightings=tuple(Sighting(rank.number, step, size - line.bytes[0]) for step, size in zip(line.steps, line.bytes, strict=True)),
    )
    return [finding]
