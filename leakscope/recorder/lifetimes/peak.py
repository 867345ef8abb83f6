"""The moment of a step at which most was alive, and the rows of its storages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from itertools import chain
from typing import Any

import numpy as np

from leakscope.graph.model import ObjectKind
from leakscope.heap.referents import held_by_frame
from leakscope.heap.snapshot import LiveSnapshot
from leakscope.heap.storages import storage_object
from leakscope.process.frames import arguments_of_running_calls, running_frames, unread_globals, unread_variables
from leakscope.process.raw_types import mro
from leakscope.process.torch_compat import StorageBase, address_of_storage
from leakscope.process.user_code import is_users
from leakscope.recorder.lifetimes.storage_table import STILL_ALIVE, Key, StorageRecord, StorageTable
from leakscope.run.model import HeapSnapshot
from leakscope.run.rows import (
    AlikeStorage,
    DraggedStorage,
    IdleStorage,
    LifetimeRow,
    LifetimesUnjudged,
    Phase,
    UntouchedStorage,
    WatchedStep,
)

_INTERFACE: Any = np.ndarray.__dict__["__array_interface__"].__get__


@dataclass
class StepPeak:
    """The peak of a step."""

    operation: int
    """Number in its step of the operation after which it was reached, -1 if the step allocates nothing."""
    sign: int
    """The value of `Table.sign` at that time."""
    start: int
    """Bytes alive at the start of the second step."""
    live: int = 0
    """Bytes alive at the peak, in the second step."""
    unseen: int = 0
    """Bytes at that time of storages whose allocation or use was not seen."""
    arguments: list[tuple[str, str]] = field(default_factory=list)
    """(function, argument) of the user's calls running at that time."""
    unread: list[tuple[int, str]] = field(default_factory=list)
    """(index in the heap graph of a running function or the script's namespace, variable) that none of the remaining
    code reads.
    """


def begin_peak(peak: StepPeak, table: StorageTable) -> None:
    """Record what is alive now, at the peak of the second step."""
    peak.live = table.live
    for record in table.alive.values():
        record.at_peak = record.bytes
    peak.arguments = arguments_of_running_calls()


def match_live(live: LiveSnapshot, peak: StepPeak, table: StorageTable) -> None:
    """Match the storages of the peak snapshot with records; those without one are unseen. Find the variables that are
    not read again.
    """
    graph = live.snapshot.heap
    peak.unread = list(_unread(live))
    for index in graph.storages.tolist():
        record = table.alive.get(int(address_of_storage(storage_object(live.objects[index]))))
        if record is None and table.counts(graph.device.get(index, "cpu")):
            peak.unseen += int(graph.bytes[index])
        elif record is not None:
            record.storage = index
    _note_shared(live, table)


def _note_shared(live: LiveSnapshot, table: StorageTable) -> None:
    """Mark the unused storages that others may use unseen, whose memory outlives them: that of an array
    (torch.from_numpy), and memory shared with other processes.
    """
    borrowed = {}
    for record in table.alive.values():
        if record.storage >= 0 and record.last < 0:
            storage = storage_object(live.objects[record.storage])
            on_host = StorageBase.device.__get__(storage).type == "cpu"  # all of an accelerator's says it is shared
            record.handed_out = on_host and bool(StorageBase.is_shared(storage))
            if on_host and not StorageBase.resizable(storage):  # its memory came from elsewhere
                borrowed[int(StorageBase.data_ptr(storage))] = record
    if borrowed:
        # an array that only a running function holds is not among gc's referents
        of_frames = (value for frame in running_frames() for value in held_by_frame(frame))
        for obj in chain(live.swept, of_frames):
            if np.ndarray in mro(type(obj)) and (at := _INTERFACE(obj)["data"][0]) in borrowed:
                borrowed[at].handed_out = True


def _unread(live: LiveSnapshot) -> Iterator[tuple[int, str]]:
    """Variables that lead to memory, of the user's running functions and of the script while it runs as `__main__`."""
    graph, objects = live.snapshot.heap, live.objects
    frames = {id(objects[index]): index for index in graph.of_kind(ObjectKind.FRAME).tolist()}
    scripts = {id(objects[index]): index for index in graph.of_kind(ObjectKind.NAMESPACE).tolist()}
    for frame in running_frames():
        code, names = frame.f_code, frame.f_globals
        if not is_users(code.co_filename):
            continue
        if code.co_flags & CO_OPTIMIZED:
            place = frames.get(id(frame), -1)
            unread = {f"local {name}" for name in unread_variables(frame)} if place >= 0 else set()
        else:
            # notebook cells have no `__file__`: a later one may read it
            script = names.get("__name__") == "__main__" and names.get("__file__") == code.co_filename
            place = scripts.get(id(names), -1) if script else -1
            unread = {f".{name}" for name in unread_globals(frame)} if place >= 0 else set()
        if unread:
            held = (graph.reference(r).name for r in graph.out_of(place).tolist())
            yield from ((place, name) for name in held if name in unread)


MAX_ROWS = 2000
"""Maximum storages reported, the largest first. Heuristic: keeps a step's file small."""
_MAX_DRAGS = 20
"""Maximum storages reported by dead time. Heuristic."""


@dataclass(frozen=True)
class Lifetimes:
    """The result of two watched steps, as plain data."""

    rows: tuple[LifetimeRow, ...]
    """For `RankFolder.append`: one for the step, then one for each storage; or the reason why there are none."""
    snapshot: HeapSnapshot | None = None
    """The heap snapshot at the peak."""


def unjudged(step: int, why: str) -> Lifetimes:
    """A result with the reason why there are no lifetimes."""
    return Lifetimes((LifetimesUnjudged(step, why),))


def rows_of(table: StorageTable, second: int, peak: StepPeak, step: int) -> Iterator[LifetimeRow]:
    """A row for the step, then rows for storages that neither step touched, for those unused after the peak, and for
    the largest dead times.

    `second` is the number of the second step's first operation. What is alive at both ends of the second step has no
    dead time. What the second step made and did not see die is judged by its counterpart of the first step, made by the
    same operation.
    """
    at = second + peak.operation
    idle = [] if peak.operation < 0 else _idle_at(table, second, peak.operation)
    points = [(number - second, live) for number, live, _ in table.curve if number >= second]
    floor = peak.live - sum(record.at_peak for record in idle)
    first = [r for r in table.records if 0 <= r.born < second and r.died < STILL_ALIVE and r.bytes]
    drags = sorted(first, key=lambda r: -_drag(table, r))[:_MAX_DRAGS]
    yield WatchedStep(
        step=step,
        device=str(table.device),
        operations=len(table.operations) - second,
        start_bytes=peak.start,
        peak_bytes=peak.live if peak.operation >= 0 else peak.start,
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
        life = _life(table, record, twin)
        yield IdleStorage(**life, last=record.last - second, died=_died(record, twin, second))
    in_idle = {id(record) for record in idle}
    sites = {_site(table, record) for record in idle}
    for record in table.records:
        if (
            id(record) not in in_idle
            and _site(table, record) in sites
            and (record.born >= second or record.died < STILL_ALIVE)
        ):
            twin = like.get((record.born - second, record.ordinal), record)
            died = _died(record, twin, second)
            if died > 0:
                yield AlikeStorage(**_life(table, record, twin), last=record.last - second, died=died)
    for record in drags:
        yield DraggedStorage(**_life(table, record, record), last=record.last, died=record.died)


def _idle_at(table: StorageTable, second: int, operation: int) -> list[StorageRecord]:
    """Storages alive after this operation of the second step that are not used again before they die."""
    keys: set[Key] = set()
    for record in table.records:
        if (
            0 <= record.born <= operation < record.died < STILL_ALIVE
            and record.last < operation
            and not record.handed_out
        ):
            keys.add((record.born, record.ordinal))
    at = second + operation
    idle = []
    for record in table.records:
        if record.last >= at or record.died <= at or record.born > at or record.at_peak <= 0 or record.handed_out:
            continue
        if record.born >= second:
            if (record.born - second, record.ordinal) in keys:
                idle.append(record)
        elif record.died < STILL_ALIVE:
            idle.append(record)
    return idle


def _untouched(table: StorageTable) -> list[StorageRecord]:
    """Storages that existed before and after the watched steps and that no operation read or wrote."""
    there = (r for r in table.records if r.born < 0 and r.last < 0 and r.died == STILL_ALIVE)
    return sorted((r for r in there if r.storage >= 0 and not r.handed_out), key=lambda r: -r.bytes)


def _site(table: StorageTable, record: StorageRecord) -> tuple[object, ...]:
    """Allocation and last use, cheap to compare."""
    places = [record.born] if record.last in (record.born, -1) else [record.born, record.last]
    operations = [table.operations[place] for place in places if place >= 0]
    return tuple((o.code, o.line, o.name, o.node) for o in operations)


def _life(table: StorageTable, record: StorageRecord, twin: StorageRecord) -> dict[str, Any]:
    """The fields reported for every storage."""
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


def _died(record: StorageRecord, twin: StorageRecord, second: int) -> int:
    """Death as an operation of the record's own step; that of its counterpart of the first step if it
    is still alive.
    """
    return record.died - second if record.died < STILL_ALIVE else twin.died


def _lag(table: StorageTable, record: StorageRecord) -> float:
    used = table.operations[record.first].seconds if record.first >= 0 else record.died_seconds
    return record.bytes * max(used - record.born_seconds, 0.0)


def _use(table: StorageTable, record: StorageRecord) -> float:
    if record.first < 0:
        return 0.0
    if record.handed_out:
        return record.bytes * max(record.died_seconds - table.operations[record.first].seconds, 0.0)
    return record.bytes * max(table.operations[record.last].seconds - table.operations[record.first].seconds, 0.0)


def _drag(table: StorageTable, record: StorageRecord) -> float:
    if record.died == STILL_ALIVE or record.handed_out:
        return 0.0
    since = table.operations[record.last].seconds if record.last >= 0 else record.born_seconds
    return record.bytes * max(record.died_seconds - since, 0.0)
