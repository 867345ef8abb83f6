"""What do the files of a rank's looks say, and which rows fit the heap that they point into?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from leakscope.graph.as_json import from_json as heap_from_json
from leakscope.graph.as_json import is_same
from leakscope.graph.model import HeapGraph
from leakscope.originals import Path
from leakscope.record.folder import look_name
from leakscope.record.kinds import Occasion
from leakscope.record.model import Look
from leakscope.record.read.damage import Damage
from leakscope.record.rows.device import DeviceBlocks
from leakscope.record.rows.lifetimes import LifetimeRow, StorageLife, UntouchedStorage, WatchedStep
from leakscope.record.rows.objects import GainingContainer
from leakscope.record.rows.row import from_json

_TYPES = {"HeapGraph": HeapGraph, "GainingContainer": GainingContainer}


def read_looks(folder: Path, damage: Damage) -> tuple[Look, ...]:
    """The looks of a rank in the order in which they were taken; one whose file is damaged is left out."""
    looks: list[Look] = []
    for path in sorted(folder.glob("heap_*.json")):
        look = damage.read(path, partial(_look, path.name), None)
        if look is not None:
            # what is worked out of a heap is worked out once for all looks that saw the same
            same = (other.heap for other in looks if is_same(other.heap, look.heap))
            looks.append(replace(look, heap=next(same, look.heap)))
    return tuple(sorted(looks, key=lambda look: (look.step, look.occasion != Occasion.STEP)))


def _look(name: str, data: Any) -> Look:
    if not isinstance(data, Mapping):
        raise ValueError("it holds no look")
    look = from_json(Look, {**data, "heap": heap_from_json(data.get("heap"))}, _TYPES)
    if look_name(look) != name:
        raise ValueError(f"it is of step {look.step} ({look.occasion})")
    outside = [row.container for row in look.containers if row.container >= len(look.heap)]
    if outside:
        raise ValueError(f"it tells of object {outside[0]} among {len(look.heap)}")
    return look


def blocks_that_fit(rows: Iterable[DeviceBlocks], looks: Sequence[Look], damage: Damage) -> tuple[DeviceBlocks, ...]:
    """The rows whose columns have one length, and point into what there is."""
    lengths = {(look.step, look.occasion): len(look.heap) for look in looks}
    fitting = []
    for row in rows:
        why = _misfit(row, lengths.get((row.step, row.occasion)))
        if why:
            damage.of_part(f"{row.FILE}.jsonl", f"what it says of step {row.step}", why)
        else:
            fitting.append(row)
    return tuple(fitting)


def _misfit(row: DeviceBlocks, objects: int | None) -> str:
    """Why the columns of a row do not fit each other, or a heap of so many objects; "" where they do."""
    count = len(row.bytes)
    for name, column in (("storage", row.storage), ("device", row.device), ("made_at", row.made_at)):
        if len(column) != count:
            return f"{name} has {len(column)} rows, bytes {count}"
    most = (
        ("storage", row.storage, objects),
        ("pending", row.pending, count),
        ("made_at", row.made_at, len(row.sites)),
    )
    for name, column, end in most:
        if end is not None and max(column, default=-1) >= end:
            return f"{name} has {max(column)}, and there are {end}"
    return ""


def lifetimes_that_fit(rows: Sequence[LifetimeRow], looks: Sequence[Look], damage: Damage) -> tuple[LifetimeRow, ...]:
    """The rows that point into the heap at the peak, or at nothing in it."""
    counts = [len(look.heap) for look in looks if look.occasion == Occasion.PEAK]
    fitting = tuple(row for row in rows if not counts or _highest(row) < min(counts))
    if len(fitting) < len(rows):
        part = f"what {len(rows) - len(fitting)} lines say"
        damage.of_part(f"{LifetimeRow.FILE}.jsonl", part, f"the heap at the peak has {min(counts)} objects")
    return fitting


def _highest(row: LifetimeRow) -> int:
    """The last object of the heap at the peak that a row points at, -1 for none."""
    if isinstance(row, UntouchedStorage | StorageLife):
        return row.storage
    return max((place for place, _ in row.unread), default=-1) if isinstance(row, WatchedStep) else -1
