"""The accelerator ran out of memory: what ended the script, and what was caught and passed by?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.findings.facts import RunFacts
from leakscope.findings.memory.oom import alive_then
from leakscope.record.folder import snapshot_name
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.model import Rank
from leakscope.record.rows.device import DeviceFailure

if TYPE_CHECKING:
    from leakscope.allocator.figures import OutOfMemory


@dataclass(frozen=True, kw_only=True)
class DeviceFailed(RunFacts):
    """An allocation on a device failed, and that ended the script."""

    failure: DeviceFailure


@dataclass(frozen=True, kw_only=True)
class RoomThen(RunFacts):
    """What of the reserved memory was idle when it failed, and what would have helped: of the allocator's snapshot."""

    failure: OutOfMemory


def device_failures(rank: Rank) -> tuple[RunFacts, ...]:
    """Of a rank that a failed allocation on its device ended: the figures, who held the memory then, and why there was
    no room.
    """
    row = fatal(rank)
    if row is None:
        return ()
    facts: list[RunFacts] = [DeviceFailed(rank=rank.number, failure=row)]
    look = next((k for k in rank.looks if k.occasion == Occasion.OOM and k.step == row.step), None)
    if look is not None and row.looked:
        facts.append(alive_then(rank, look, rank.number))
    then = _in_snapshot(rank, row) if row.looked else None  # a snapshot is written at a look alone
    return (*facts, RoomThen(rank=rank.number, failure=then)) if then is not None else tuple(facts)


def _in_snapshot(rank: Rank, row: DeviceFailure) -> OutOfMemory | None:
    """The failure in the snapshot that was written at it: the last of that device."""
    name = snapshot_name(row.kind, row.step, Occasion.OOM)
    return next(
        (
            device.out_of_memory[-1]
            for report in rank.snapshots
            if report.name == name
            for device in report.devices
            if device.device == row.device and device.out_of_memory
        ),
        None,
    )


def fatal(rank: Rank) -> DeviceFailure | None:
    """The failure that ended the script: the last one, in the step of the error that came out of it."""
    rows, ends = rank.device_failures, rank.allocation_failures
    if not rows or not ends or rank.ended.how not in (EndKind.RAISED, EndKind.HUNG):
        return None
    return rows[-1] if rows[-1].step == ends[-1].step else None


def caught(rank: Rank) -> tuple[DeviceFailure, ...]:
    """The failures after which the script went on: it caught them, or a library that tries sizes did."""
    return rank.device_failures if fatal(rank) is None else rank.device_failures[:-1]
