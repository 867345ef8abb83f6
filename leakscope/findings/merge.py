"""What one cut lets go of is one finding, however differently its parts are held below the cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.model import Finding, FreedBy, Severity, Sighting


def with_one_cut(found: Sequence[Finding]) -> list[tuple[int, ...]]:
    """Positions of the findings of one rank that the same cut mends, the one that tells most first."""
    same: dict[object, list[int]] = defaultdict(list)
    for place, finding in enumerate(found):
        cut = finding.cut
        shared = cut is not None and finding.freed_by == FreedBy.PROGRAM
        same[(cut.reference, cut.where, cut.written, cut.also) if cut is not None and shared else place].append(place)
    return [
        tuple(sorted(places, key=lambda p: (found[p].severity != Severity.LEAK, -found[p].retained_bytes)))
        for places in same.values()
    ]


def as_one(found: Sequence[Finding]) -> Finding:
    """Findings with one cut as the first of them, with the bytes and storages of all."""
    first, *others = found
    if not others or first.cut is None:
        return first
    seen: Counter[tuple[int, int]] = Counter()
    for finding in found:
        for sighting in finding.sightings:
            seen[sighting.rank, sighting.step] += sighting.bytes
    worst = [f for f in found if f.severity == first.severity]
    return replace(
        first,
        fingerprint=min(f.fingerprint for f in worst),  # whichever is the largest this time
        retained_bytes=sum(f.retained_bytes for f in found),
        bytes_per_step=sum(f.bytes_per_step for f in found),
        count=sum(f.count for f in found),
        host_bytes=sum(f.host_bytes for f in found),
        counted_bytes=sum(f.counted_bytes for f in found),
        made_at=tuple(dict.fromkeys(place for f in found for place in f.made_at)),
        sightings=tuple(Sighting(rank, step, size) for (rank, step), size in sorted(seen.items())),
        cut=replace(first.cut, frees_bytes=sum(f.cut.frees_bytes for f in found if f.cut is not None)),
        storages={rank: tuple(s for f in found for s in f.storages.get(rank, ())) for rank in first.storages},
    )
