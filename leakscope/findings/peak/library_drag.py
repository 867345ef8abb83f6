"""What is never used again after the step's peak and only somebody else could let go: a library, zero_grad, a Work."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from leakscope.findings.cut.trace import on_trace
from leakscope.findings.facts import Facts, Upstream
from leakscope.findings.kinds import FreedBy, Origin, RuleName, Severity
from leakscope.findings.model import Cut, CutReference, Finding, Sighting
from leakscope.findings.naming.trace import fingerprint
from leakscope.findings.ownership.facts import LibraryDragFacts
from leakscope.findings.ownership.library_paths import whole_trace
from leakscope.findings.ownership.library_retention import LibraryRetention, by_holder, kept_too
from leakscope.findings.peak.idle import Idle, PeakOfStep, Releaser
from leakscope.graph.paths import paths_from_roots
from leakscope.record.kinds import Phase

NAME = RuleName.LATE_RELEASE
_SHARE_THRESHOLD = 0.05
"""Share of the step's own peak, above what was alive when it began, from which what somebody else holds is worth
a word.
"""
_MIN_FACTOR = 16
"""And at least this many times `min_bytes`."""
_OTHERS = (Releaser.GRADIENT, Releaser.COMM, Releaser.AUTOGRAD)
"""Not `LIBRARY`: what a library that nobody knows or a running call keeps has no holder to name and nothing to do."""


@dataclass(frozen=True)
class OthersFacts(Facts):
    """Memory at the step's peak that nothing uses again and that only somebody else could let go."""

    bytes: int
    by: Releaser
    fall_bytes: int
    """By how much the step's peak would fall."""


def others_findings(peak: PeakOfStep, min_bytes: int, least: float, reported: Collection[str]) -> list[Finding]:
    """One for each holder of a library that is known, but for those `reported` already, then one for each other sort
    that would let the peak fall by `least` bytes.
    """
    by_storage = {idle.row.storage: idle for idle in peak.held_by(Releaser.LIBRARY)}
    kept = by_holder(peak.graph, list(by_storage), alone=True)
    findings = []
    for kept_by in kept:
        idle = [by_storage[storage] for storage in kept_by.holds]
        if kept_by.known.holder not in reported and _bytes(idle) >= least:
            findings.append(_known(peak, kept_by, idle))
    named = {storage for kept_by in kept for storage in kept_by.holds}
    for who in _OTHERS:
        idle = [entry for entry in peak.held_by(who) if entry.row.storage not in named]
        if who == Releaser.GRADIENT and peak.step.peak_phase == Phase.OPTIMIZER:
            continue  # the optimizer itself still holds them: no zero_grad could come before
        if peak.fall(idle) >= least and _bytes(idle) >= max(_MIN_FACTOR * min_bytes, _SHARE_THRESHOLD * peak.rise, 1):
            findings.append(_unknown(peak, who, idle))
    return findings


def _bytes(idle: Sequence[Idle]) -> int:
    return sum(entry.row.bytes for entry in idle)


def _made_at(idle: Sequence[Idle]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.row.made_at for entry in idle if entry.row.made_at))[:6]


def _known(peak: PeakOfStep, kept: LibraryRetention, idle: Sequence[Idle]) -> Finding:
    graph, known, size = peak.graph, kept.known, _bytes(idle)
    frees = kept.frees(graph)
    typical = max(kept.holds, key=lambda s: (int(graph.bytes[s]), s))
    hold = kept.of_its_own(typical)[0]
    trace = whole_trace(graph, paths_from_roots(graph), hold, frees)
    named = CutReference(known.holder, indexes=hold.path[:1])
    return Finding(
        rule=NAME,
        facts=LibraryDragFacts(
            known.holder, size, len(kept.holds), kept_too(graph, kept), known.cure, peak.step.peak_at
        ),
        fingerprint=fingerprint(("kept by library at the peak", known.holder)),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=trace,
        cut=on_trace(Cut((named,), frees), trace) if frees else None,
        origin=Origin.LIBRARY,
        library="torch",
        upstream=Upstream(known.issue, known.what),
        made_at=_made_at(idle),
        sightings=(Sighting(peak.rank, peak.step.step, size),),
        count=len(idle),
    )


def _unknown(peak: PeakOfStep, who: Releaser, idle: Sequence[Idle]) -> Finding:
    size = _bytes(idle)
    return Finding(
        rule=NAME,
        facts=OthersFacts(bytes=size, by=who, fall_bytes=peak.fall(idle)),
        fingerprint=fingerprint((NAME, who)),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        made_at=_made_at(idle),
        sightings=(Sighting(peak.rank, peak.step.step, size),),
        count=len(idle),
    )
