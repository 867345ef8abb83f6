"""The accelerator ran out of memory: what ended the script, and what was caught and passed by?"""

from __future__ import annotations

from leakscope.findings.memory.oom import holders_told
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.model import Rank, Run
from leakscope.record.rows.device import DeviceFailure
from leakscope.units import bytes_text


def device_failures_told(run: Run) -> tuple[str, ...]:
    """For each rank that a failed allocation on its device ended: the figures, and who held the memory then."""
    told: list[str] = []
    for rank in run.ranks:
        row = fatal(rank)
        if row is None:
            continue
        told.append(f"Rank {rank.number}: {_figures(row)}")
        look = next((k for k in rank.looks if k.occasion == Occasion.OOM and k.step == row.step), None)
        if look is not None and row.looked:
            told += [f"Rank {rank.number}: {text}" for text in holders_told(look, True)]
    return tuple(told)


def fatal(rank: Rank) -> DeviceFailure | None:
    """The failure that ended the script: the last one, in the step of the error that came out of it."""
    rows, ends = rank.device_failures, rank.allocation_failures
    if not rows or not ends or rank.ended.how not in (EndKind.RAISED, EndKind.HUNG):
        return None
    return rows[-1] if rows[-1].step == ends[-1].step else None


def caught(rank: Rank) -> tuple[DeviceFailure, ...]:
    """The failures after which the script went on: it caught them, or a library that tries sizes did."""
    return rank.device_failures if fatal(rank) is None else rank.device_failures[:-1]


def _figures(row: DeviceFailure) -> str:
    counted = row.counted
    parts = [
        f"{bytes_text(row.wanted_bytes)} were wanted on {row.kind}:{row.device}{f' at {row.at}' if row.at else ''}"
    ]
    if counted is not None:
        parts.append(f"{bytes_text(counted.allocated)} allocated of {bytes_text(counted.reserved)} reserved")
        if counted.active > counted.allocated:
            pending = counted.active - counted.allocated
            parts.append(f"{bytes_text(pending)} dead and waited for by another stream")
    parts.append(f"the driver had {bytes_text(row.free_bytes)} free, the limit is {bytes_text(row.limit_bytes)}")
    return "; ".join(parts) + "."
