"""The accelerator ran out of memory: what ended the script, and what was caught and passed by?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakscope.findings.memory.oom import holders_told
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.model import Rank, Run
from leakscope.units import bytes_text

Row = Mapping[str, Any]


def device_failures_told(run: Run) -> tuple[str, ...]:
    """For each rank that a failed allocation on its device ended: the figures, and who held the memory then."""
    told: list[str] = []
    for rank in run.ranks:
        row = fatal(rank)
        if row is None:
            continue
        told.append(f"Rank {rank.number}: {_figures(row)}")
        look = next((k for k in rank.looks if k.occasion == Occasion.OOM and k.step == row["step"]), None)
        if look is not None and row["looked"]:
            told += [f"Rank {rank.number}: {text}" for text in holders_told(look, True)]
    return tuple(told)


def fatal(rank: Rank) -> Row | None:
    """The failure that ended the script: the last one, in the step of the error that came out of it."""
    rows = rank.extras.get("device_out_of_memory", ())
    ends = rank.extras.get("out_of_memory", ())
    if not rows or not ends or rank.ended.how != EndKind.RAISED:
        return None
    return rows[-1] if rows[-1]["step"] == ends[-1]["step"] else None


def caught(rank: Rank) -> tuple[Row, ...]:
    """The failures after which the script went on: it caught them, or a library that tries sizes did."""
    rows = rank.extras.get("device_out_of_memory", ())
    return tuple(rows if fatal(rank) is None else rows[:-1])


def _figures(row: Row) -> str:
    counted = row.get("counted") or {}
    parts = [f"{bytes_text(row['wanted_bytes'])} were wanted on {row['kind']}:{row['device']}"]
    if row.get("at"):
        parts[0] += f" at {row['at']}"
    if counted:
        reserved, allocated = counted["reserved"], counted["allocated"]
        parts.append(f"{bytes_text(allocated)} allocated of {bytes_text(reserved)} reserved")
        if counted["active"] > allocated:
            parts.append(f"{bytes_text(counted['active'] - allocated)} dead and waited for by another stream")
    limit, free = row["limit_bytes"], row["free_bytes"]
    parts.append(f"the driver had {bytes_text(free)} free, the limit is {bytes_text(limit)}")
    return "; ".join(parts) + "."
