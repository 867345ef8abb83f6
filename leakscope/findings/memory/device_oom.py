"""The accelerator ran out of memory: what ended the script, and what was caught and passed by?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.findings.facts import RunFacts
from leakscope.findings.memory.oom import alive_then
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.model import Rank
from leakscope.record.rows.device import DeviceFailure


@dataclass(frozen=True, kw_only=True)
class DeviceFailed(RunFacts):
    """An allocation on a device failed, and that ended the script."""

    failure: DeviceFailure


def device_failures(rank: Rank) -> tuple[RunFacts, ...]:
    """Of a rank that a failed allocation on its device ended: the figures, and who held the memory then."""
    row = fatal(rank)
    if row is None:
        return ()
    failed = DeviceFailed(rank=rank.number, failure=row)
    look = next((k for k in rank.looks if k.occasion == Occasion.OOM and k.step == row.step), None)
    return (failed, alive_then(rank, look, rank.number)) if look is not None and row.looked else (failed,)


def fatal(rank: Rank) -> DeviceFailure | None:
    """The failure that ended the script: the last one, in the step of the error that came out of it."""
    rows, ends = rank.device_failures, rank.allocation_failures
    if not rows or not ends or rank.ended.how not in (EndKind.RAISED, EndKind.HUNG):
        return None
    return rows[-1] if rows[-1].step == ends[-1].step else None


def caught(rank: Rank) -> tuple[DeviceFailure, ...]:
    """The failures after which the script went on: it caught them, or a library that tries sizes did."""
    return rank.device_failures if fatal(rank) is None else rank.device_failures[:-1]
