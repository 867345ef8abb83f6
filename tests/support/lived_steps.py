"""Runs training steps under a lifetime watch, and measures their peak without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from leakscope.findings.model import Finding, Unjudged
from leakscope.findings.peak import PeakOfStep, peak_of
from leakscope.findings.rules.late_release import LateReleaseFacts, late_release_findings, late_release_unjudged
from leakscope.heap.snapshot import SnapshotContext, inspect
from leakscope.process.patches import Patches
from leakscope.recorder.lifetimes.tracker import LifetimeTracker
from leakscope.run.model import Ended, Rank
from leakscope.run.rows import WatchedStep

KIB = 1024


@dataclass(frozen=True)
class Lived:
    """What was told of the watched step."""

    rank: Rank
    peak: PeakOfStep | None
    findings: tuple[Finding, ...]
    unjudged: tuple[Unjudged, ...]

    @property
    def step(self) -> WatchedStep:
        return next(row for row in self.rank.lifetimes if isinstance(row, WatchedStep))

    @property
    def avoidable(self) -> int:
        assert self.peak is not None, self.unjudged
        return self.peak.avoidable_bytes

    @property
    def reported(self) -> list[Finding]:
        """What the user's code could let go of."""
        return [finding for finding in self.findings if isinstance(finding.facts, LateReleaseFacts)]


def watched(step: Callable[[], object], times: int = 8, min_bytes: int = 0) -> Lived:
    """`step` called until it has been told of, at most `times` times; a step ends where the call ends."""
    rows: list[Any] = []
    snapshots: list[Any] = []
    watch = LifetimeTracker(
        0, lambda number, occasion: inspect(number, occasion, SnapshotContext(hidden=(watch, rows, snapshots)))
    )
    patches = Patches()
    watch.install(patches, comm=False)
    try:
        for number in range(1, times + 1):
            step()
            reported = watch.boundary(number)
            if reported is not None:
                rows += reported.rows
                snapshots += [reported.snapshot] if reported.snapshot else []
                break
    finally:
        watch.leave()
        watch.forget()
        patches.take_out()
    rank = Rank(0, (), tuple(snapshots), Ended("finished", 0, times), lifetimes=tuple(rows))
    found = late_release_findings(rank, min_bytes, worth_share=0.001)  # what other tests keep alive is in the peak
    return Lived(rank, peak_of(rank), tuple(found), tuple(late_release_unjudged(rank)))


def measured_peak(step: Callable[[], object]) -> int:
    """Bytes of a step's peak above its start, as torch's own profiler counts the CPU allocator, no leakscope near."""
    step()
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        step()
    live = peak = 0
    events = profile.kineto_results.events()  # type: ignore[attr-defined]
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


BIG = 256 * KIB
"""Bytes of the storage each test is about."""
REST = 4096 * KIB
"""Bytes that stand for the rest of the step: its peak."""


def big() -> torch.Tensor:
    return torch.ones(BIG // 4)


def scratch() -> None:
    torch.zeros(REST // 4)


def idle_bytes(lived: Lived) -> list[int]:
    assert lived.peak is not None, lived.unjudged
    return [one.row.bytes for one in lived.peak.idle if one.row.bytes >= BIG]
