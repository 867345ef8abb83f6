"""When would the accelerator be full? Told only where memory rises steadily, and to what is known to be there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakscope.findings.counters import counted_steps, rate_at_end, rises_steadily
from leakscope.findings.ledger import NO_GROWTH
from leakscope.record.model import Rank
from leakscope.record.rows.device import LayoutAtLook

_OTHERS = 0.1
"""Share of a rank's own growth from which on what others take of its device counts too, and nothing is told; chosen."""


@dataclass(frozen=True)
class FullAt:
    """A forecast: the step at whose peak nothing is left, if memory goes on rising as it did."""

    step: int
    capacity_bytes: int
    """All memory of the device."""


def full_at(rank: Rank, warmup: int) -> FullAt | None:
    """When a rank's device would be full; None where its memory does not rise steadily, where it uses several devices,
    where the driver was not asked, or where others take memory of the device as well.
    """
    seen = [(row.step, row.layout[0]) for row in rank.device_blocks if len(row.layout) == 1]
    told = [(step, layout, layout.driver) for step, layout in seen if layout.driver is not None]
    rate, counted = rate_at_end(rank, warmup), counted_steps(rank)
    if len(told) < len(rank.device_blocks) or not told or len({layout.device for _, layout, _ in told}) > 1:
        return None
    if rate is None or rate < NO_GROWTH or not rises_steadily(rank, warmup) or counted[-1].counted_on == "cpu":
        return None
    judged = [each for each in told if each[0] > warmup] or told
    (_, first, _), (_, last, (free, total)) = judged[0], judged[-1]
    if _outside(last) - _outside(first) > _OTHERS * max(last.active - first.active, 1):
        return None
    end, now = counted[-1].number, counted[-1].counted_bytes or 0
    peaks = [(step.peak_bytes, step.counted_bytes) for step in counted]
    above = [peak - size for peak, size in peaks if peak is not None and size is not None]
    left = free + last.reserved - now - (above[-1] if above else 0)
    return FullAt(_rounded(end + max(left, 0) / rate), total)


def _outside(layout: LayoutAtLook) -> int:
    free, total = layout.driver or (0, 0)
    return total - free - layout.reserved


def _rounded(step: float) -> int:
    """To two digits: a forecast is no better."""
    digits = max(len(str(math.ceil(step))) - 2, 0)
    return int(round(step, -digits))
