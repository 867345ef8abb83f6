"""Forecasts of what leaks hold: at the end of the run, and the step at which memory is full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.findings.counters import counted_steps, rate_at_end, rises_steadily
from leakscope.findings.model import NO_GROWTH, Finding
from leakscope.findings.thresholds import memory_there
from leakscope.run.model import Rank, Run
from leakscope.run.rows import LayoutAtSnapshot

_OTHER_USERS_SHARE = 0.1
"""Share of a rank's growth from which other users of its device count, and no forecast is given. Heuristic."""


@dataclass(frozen=True)
class FullAt:
    """A forecast: the step at whose peak memory is full if growth continues."""

    step: int
    capacity_bytes: int
    """Total memory of the device."""


def full_at(rank: Rank, warmup: int) -> FullAt | None:
    """When a rank's device would be full; None if its memory does not rise steadily, if it uses several devices, if the
    driver's figures are unknown, or if others use the device too.
    """
    seen = [(row.step, row.layout[0]) for row in rank.device_blocks if len(row.layout) == 1]
    with_driver = [(step, layout, layout.driver) for step, layout in seen if layout.driver is not None]
    rate, counted = rate_at_end(rank, warmup), counted_steps(rank)
    if (
        len(with_driver) < len(rank.device_blocks)
        or not with_driver
        or len({layout.device for _, layout, _ in with_driver}) > 1
    ):
        return None
    if rate is None or rate < NO_GROWTH or not rises_steadily(rank, warmup) or counted[-1].counted_on == "cpu":
        return None
    judged = [each for each in with_driver if each[0] > warmup] or with_driver
    (_, first, _), (_, last, (free, total)) = judged[0], judged[-1]
    if _outside(last) - _outside(first) > _OTHER_USERS_SHARE * max(last.active - first.active, 1):
        return None
    end, now = counted[-1].number, counted[-1].counted_bytes or 0
    peaks = [(step.peak_bytes, step.counted_bytes) for step in counted]
    above = [peak - size for peak, size in peaks if peak is not None and size is not None]
    left = free + last.reserved - now - (above[-1] if above else 0)
    return FullAt(_rounded(end + max(left, 0) / rate), total)


def _outside(layout: LayoutAtSnapshot) -> int:
    free, total = layout.driver or (0, 0)
    return total - free - layout.reserved


def _rounded(step: float) -> int:
    """Round to two digits, the precision of a forecast."""
    digits = max(len(str(math.ceil(step))) - 2, 0)
    return int(round(step, -digits))


_MAX_FORECAST_FACTOR = 20
"""Factor over the steps seen up to which a forecast for the host is given. At 100 a run of 12 steps forecasts step
1,200 from four heap snapshots; at 5 a job that ends tonight is not warned.
"""


@dataclass(frozen=True)
class AtEnd:
    """What leaks hold at the end of a run."""

    bytes: int
    """Bytes held at the end of the run, extrapolated by the counters; 0 if the last heap snapshot was at the end."""
    full_at_step: int
    """Step at which memory is full; 0 if unknown, or too far off."""


def at_end_of_run(run: Run, leaks: Sequence[Finding]) -> AtEnd:
    """What the leaks of a run held at its end, and when memory is full."""
    ongoing = [leak for leak in leaks if leak.bytes_per_step > 0 and not leak.freed_late]
    more = sum(_since_last_snapshot(rank, ongoing) for rank in run.ranks)
    held = sum(leak.retained_bytes for leak in leaks)
    return AtEnd(held + more if more > 0 else 0, _full_at(run, ongoing))


def _rate_of(rank: Rank, leaks: Sequence[Finding]) -> float:
    return sum(leak.bytes_per_step / len(leak.ranks) for leak in leaks if rank.number in leak.ranks)


def _since_last_snapshot(rank: Rank, leaks: Sequence[Finding]) -> int:
    """What the leaks of a rank gained since their last snapshot: by their rate, or by the counters if that is less."""
    seen = [s.step for leak in leaks for s in leak.sightings if s.rank == rank.number]
    counted = {step.number: step.counted_bytes or 0 for step in counted_steps(rank)}
    if not seen or max(seen) not in counted or max(counted) <= max(seen):
        return 0
    by_rate = _rate_of(rank, leaks) * (max(counted) - max(seen))
    return round(max(min(by_rate, counted[max(counted)] - counted[max(seen)]), 0))


def _used_by_others(ranks: Sequence[Rank]) -> int:
    """Host memory that these ranks do not count: other processes, and code of their libraries.

    As recorded before each rank's first heap snapshot; of several ranks the last to be recorded has seen them all.
    """
    counted = sum(next((snapshot.counted_bytes or 0 for snapshot in rank.heap_snapshots), 0) for rank in ranks)
    used = max((rank.host_memory[0].used_bytes or 0 for rank in ranks if rank.host_memory), default=0)
    return max(used - counted, 0)


def _full_at(run: Run, leaks: Sequence[Finding]) -> int:
    ranks = [rank for rank in run.ranks if counted_steps(rank) and _rate_of(rank, leaks) > 0]
    if not ranks:
        return 0
    of_devices = [full_at(rank, run.warmup_of(rank)) for rank in ranks]
    steps = [full.step for full in of_devices if full is not None]
    there = memory_there(ranks[0], on_device=False)
    on_host = [rank for rank in ranks if counted_steps(rank)[-1].counted_on == "cpu"]
    if on_host and there is not None:
        end = max(rank.steps[-1].number for rank in on_host)
        used = _used_by_others(on_host) + sum(counted_steps(rank)[-1].counted_bytes or 0 for rank in on_host)
        steps.append(_rounded(end + max(there - used, 0) / sum(_rate_of(rank, leaks) for rank in on_host)))
    first = min(steps, default=0)
    return first if first <= _MAX_FORECAST_FACTOR * max(rank.steps[-1].number for rank in ranks) else 0
