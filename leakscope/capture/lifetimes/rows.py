"""What two watched steps say about the second one's peak, as rows for the run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from leakscope.capture.lifetimes.peak import Peak
from leakscope.capture.lifetimes.records import GONE, Key, Record
from leakscope.capture.lifetimes.table import Table
from leakscope.record.kinds import Phase
from leakscope.record.model import Look
from leakscope.record.rows.lifetimes import (
    AlikeStorage,
    DraggedStorage,
    IdleStorage,
    LifetimeRow,
    LifetimesUnjudged,
    UntouchedStorage,
    WatchedStep,
)

MAX_ROWS = 2000
"""Storages told of at most, the largest first, chosen: a step's file stays small."""
_MAX_DRAGS = 20
"""Storages of the largest drags told of, chosen."""


@dataclass(frozen=True)
class Lifetimes:
    """What two watched steps showed, as plain data."""

    rows: tuple[LifetimeRow, ...]
    """For `RankFolder.append`: one for the step, then one for each storage; or why there are none."""
    look: Look | None = None
    """The heap at the peak."""


def unjudged(step: int, why: str) -> Lifetimes:
    """Why there are no lifetimes."""
    return Lifetimes((LifetimesUnjudged(step, why),))


def rows_of(table: Table, second: int, peak: Peak, step: int) -> Iterator[LifetimeRow]:
    """One row for the step, rows for the storages that neither step touched, for those that were not used again at its
    peak, then for the largest drags.

    `second` is the number of the second step's first operation. What is alive at both ends of the second step is
    nobody's drag; what it made and did not see die is judged by its like of the first step, made by the same operation.
    """
    at = second + peak.operation
    idle = [] if peak.operation < 0 else _idle_at(table, second, peak.operation)
    points = [(number - second, live) for number, live, _ in table.curve if number >= second]
    floor = peak.live - sum(record.at_peak for record in idle)
    first = [r for r in table.records if 0 <= r.born < second and r.died < GONE and r.bytes]
    drags = sorted(first, key=lambda r: -_drag(table, r))[:_MAX_DRAGS]
    yield WatchedStep(
        step=step,
        device=str(table.device),
        operations=len(table.operations) - second,
        start_bytes=peak.start,
        peak_bytes=peak.live if peak.operation >= 0 else peak.start,
        peak_operation=peak.operation,
        peak_at=table.operations[at].where() if peak.operation >= 0 else "",
        peak_phase=table.operations[at].phase if peak.operation >= 0 else Phase.NONE,
        backward_follows=any(o.phase == Phase.BACKWARD for o in table.operations[at + 1 :]),
        unseen_bytes=peak.unseen,
        arguments=tuple(peak.arguments),
        curve=tuple(point for point in points if point[1] >= floor),
        storages=len(first),
        lag_byte_seconds=sum(_lag(table, r) for r in first),
        use_byte_seconds=sum(_use(table, r) for r in first),
        drag_byte_seconds=sum(_drag(table, r) for r in first),
        unread=tuple(peak.unread),
    )
    for record in _untouched(table)[:MAX_ROWS]:
        yield UntouchedStorage(storage=record.storage)
    like = {(r.born, r.ordinal): r for r in table.records if 0 <= r.born < second}
    for record in sorted(idle, key=lambda r: -r.at_peak)[:MAX_ROWS]:
        twin = like.get((record.born - second, record.ordinal), record)
        same = _one_statement(table, record.last, at)
        life = _life(table, record, twin)
        yield IdleStorage(**life, last=record.last - second, died=_died(record, twin, second), one_statement=same)
    in_idle = {id(record) for record in idle}
    sites = {_site(table, record) for record in idle}
    for record in table.records:
        if (
            id(record) not in in_idle
            and _site(table, record) in sites
            and (record.born >= second or record.died < GONE)
        ):
            twin = like.get((record.born - second, record.ordinal), record)
            died = _died(record, twin, second)
            if died > 0:
                yield AlikeStorage(**_life(table, record, twin), last=record.last - second, died=died)
    for record in drags:
        yield DraggedStorage(**_life(table, record, record), last=record.last, died=record.died)


def _idle_at(table: Table, second: int, operation: int) -> list[Record]:
    """Storages alive after this operation of the second step that nothing uses from then on, and that then die."""
    keys: set[Key] = set()
    for record in table.records:
        if 0 <= record.born <= operation < record.died < GONE and record.last < operation and not record.handed_out:
            keys.add((record.born, record.ordinal))
    at = second + operation
    idle = []
    for record in table.records:
        if record.last >= at or record.died <= at or record.born > at or record.at_peak <= 0 or record.handed_out:
            continue
        if record.born >= second:
            if (record.born - second, record.ordinal) in keys:
                idle.append(record)
        elif record.died < GONE:
            idle.append(record)
    return idle


def _untouched(table: Table) -> list[Record]:
    """Storages that were there before the watched steps and after them, and that no operation read or wrote."""
    there = (r for r in table.records if r.born < 0 and r.last < 0 and r.died == GONE)
    return sorted((r for r in there if r.storage >= 0 and not r.handed_out), key=lambda r: -r.bytes)


def _site(table: Table, record: Record) -> tuple[object, ...]:
    """Where it was made and where it was last used, cheap to compare."""
    places = [record.born] if record.last in (record.born, -1) else [record.born, record.last]
    operations = [table.operations[place] for place in places if place >= 0]
    return tuple((o.code, o.line, o.name, o.node) for o in operations)


def _life(table: Table, record: Record, twin: Record) -> dict[str, Any]:
    """What is told of every storage."""
    operations = table.operations
    made = operations[record.born] if record.born >= 0 else None
    last = operations[record.last] if record.last >= 0 else None
    return {
        "storage": record.storage,
        "bytes": record.at_peak if record.at_peak >= 0 else record.bytes,
        "made_at": made.where() if made else "",
        "module": made.module if made else "",
        "phase": made.phase if made else Phase.NONE,
        "last_use_at": last.where() if last and record.last != record.born else "",
        "last_phase": last.phase if last else Phase.NONE,
        "drag_byte_seconds": _drag(table, twin),
    }


def _one_statement(table: Table, last: int, peak: int) -> bool:
    """Whether the statement that used it last is the one that still runs at the peak, as one call of backward."""
    if last < 0:
        return False
    places = {(o.code, o.line) for o in table.operations[last : peak + 1]}
    return len(places) == 1


def _died(record: Record, twin: Record, second: int) -> int:
    """Death as an operation of the record's own step; that of its like of the first step where it still lives."""
    return record.died - second if record.died < GONE else twin.died


def _lag(table: Table, record: Record) -> float:
    used = table.operations[record.first].seconds if record.first >= 0 else record.died_seconds
    return record.bytes * max(used - record.born_seconds, 0.0)


def _use(table: Table, record: Record) -> float:
    if record.first < 0:
        return 0.0
    if record.handed_out:
        return record.bytes * max(record.died_seconds - table.operations[record.first].seconds, 0.0)
    return record.bytes * max(table.operations[record.last].seconds - table.operations[record.first].seconds, 0.0)


def _drag(table: Table, record: Record) -> float:
    if record.died == GONE or record.handed_out:
        return 0.0
    since = table.operations[record.last].seconds if record.last >= 0 else record.born_seconds
    return record.bytes * max(record.died_seconds - since, 0.0)
