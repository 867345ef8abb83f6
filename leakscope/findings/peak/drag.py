"""How long did memory lie unused: lag, use and drag of a watched step in byte-seconds, and what of its peak was
idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakscope.findings.facts import RunFacts
from leakscope.findings.peak.idle import PeakOfStep, Releaser, peak_of
from leakscope.record.model import Rank
from leakscope.record.rows.lifetimes import WatchedStep


@dataclass(frozen=True, kw_only=True)
class LagUseDrag(RunFacts):
    """How long the storages lived that the step before a watched step had made and let go."""

    step: int
    storages: int
    lag_byte_seconds: float
    """Before the first use."""
    use_byte_seconds: float
    drag_byte_seconds: float
    """After the last use."""


@dataclass(frozen=True, kw_only=True)
class IdleAtPeak(RunFacts):
    """How much of a watched step's peak was not used again, and who could let go of it."""

    step: int
    device: str
    peak_bytes: int
    peak_at: str
    """The line that ran then, "" where it is not known."""
    idle_bytes: int
    by: Mapping[Releaser, int]
    """Those of the idle bytes that each could let go of."""
    unseen_bytes: int
    """What other threads or native code had made unseen; it is beside the peak."""


def drag(rank: Rank) -> tuple[RunFacts, ...]:
    """Two facts of a rank of which a step was watched storage by storage; none of others."""
    peak = peak_of(rank)
    return () if peak is None else (*_lived(rank.number, peak.step), _idle_at_peak(rank.number, peak))


def _lived(rank: int, step: WatchedStep) -> list[RunFacts]:
    if step.lag_byte_seconds + step.use_byte_seconds + step.drag_byte_seconds <= 0:
        return []
    return [
        LagUseDrag(
            rank=rank,
            step=step.step,
            storages=step.storages,
            lag_byte_seconds=step.lag_byte_seconds,
            use_byte_seconds=step.use_byte_seconds,
            drag_byte_seconds=step.drag_byte_seconds,
        )
    ]


def _idle_at_peak(rank: int, peak: PeakOfStep) -> RunFacts:
    step = peak.step
    return IdleAtPeak(
        rank=rank,
        step=step.step,
        device=step.device,
        peak_bytes=step.peak_bytes,
        peak_at=step.peak_at,
        idle_bytes=sum(storage.row.bytes for storage in peak.idle),
        by={who: sum(storage.row.bytes for storage in peak.held_by(who)) for who in Releaser},
        unseen_bytes=step.unseen_bytes,
    )
