"""Out of memory: the allocator's blocks joined with storages, and what rose before the failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from leakscope.findings.facts import RunFacts
from leakscope.findings.grouping import StorageGroup, group_storages, is_model
from leakscope.findings.naming import as_expression, generic
from leakscope.graph.model import REACHABLE, HeapGraph, ObjectKind
from leakscope.run.model import HeapSnapshot, Rank, Run
from leakscope.run.rows import (
    DeviceBlocks,
    DeviceFailure,
    EndKind,
    LayoutAtSnapshot,
    LimitNear,
    Occasion,
    PeerOutOfMemory,
)
from leakscope.run.writer import snapshot_name

if TYPE_CHECKING:
    from leakscope.memory_snapshot.analysis import OutOfMemory


@dataclass(frozen=True)
class NativeSite:
    """Blocks without a storage from one allocation site."""

    where: str
    bytes: int
    count: int


@dataclass(frozen=True)
class DeviceSnapshot:
    """One device at one snapshot; `held`, `waiting`, `native` and `pending` sum to `active`."""

    step: int
    occasion: str
    kind: str
    device: int
    reserved: int
    active: int
    held: int
    """In blocks of reachable storages, including rounding."""
    waiting: int
    """In blocks of unreachable storages: awaiting gc, or uncollectable."""
    native: int
    """In blocks without a storage that a Python object or autograd path leads to."""
    pending: int
    """Dead, but in use by another stream."""
    rounding: int
    stuck: int
    """Reserved and unused in segments with a live block."""
    private: int
    """Reserved by pools other than the default one."""
    outside: int | None
    """In use on the device and not reserved here: the context, libraries, other processes; None if unknown."""
    sites: tuple[NativeSite, ...] = ()
    """Allocation sites of the native blocks, largest first."""
    pending_sites: tuple[NativeSite, ...] = ()


def device_snapshots(rank: Rank) -> tuple[DeviceSnapshot, ...]:
    """Every device at every joined snapshot, in order."""
    snapshots = {(snapshot.step, snapshot.occasion): snapshot for snapshot in rank.heap_snapshots}
    found = []
    for row in rank.device_blocks:
        snapshot = snapshots.get((row.step, row.occasion))
        if snapshot is not None:
            found += [_device(row, layout, snapshot) for layout in row.layout]
    return tuple(found)


def _device(row: DeviceBlocks, layout: LayoutAtSnapshot, snapshot: HeapSnapshot) -> DeviceSnapshot:
    mine = np.asarray(row.device, np.int64) == layout.device
    size, storage = np.asarray(row.bytes, np.int64), np.asarray(row.storage, np.int64)
    pending = np.zeros(len(size), bool)
    pending[np.asarray(row.pending, np.int64)] = True
    known = mine & (storage >= 0)
    dead = np.zeros(len(size), bool)
    dead[known] = snapshot.heap.freed[storage[known]] != REACHABLE
    native = mine & ~known & ~pending
    driver = layout.driver
    return DeviceSnapshot(
        step=row.step,
        occasion=row.occasion,
        kind=row.kind,
        device=layout.device,
        reserved=layout.reserved,
        active=layout.active,
        held=int(size[known & ~dead].sum()),
        waiting=int(size[dead].sum()),
        native=int(size[native].sum()),
        pending=int(size[mine & pending].sum()),
        rounding=layout.rounding,
        stuck=layout.stuck,
        private=layout.private,
        outside=None if driver is None else max(driver[1] - driver[0] - layout.reserved, 0),
        sites=_by_site(row, native),
        pending_sites=_by_site(row, mine & pending),
    )


def _by_site(row: DeviceBlocks, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[NativeSite, ...]:
    sizes: dict[str, list[int]] = {}
    for index in np.flatnonzero(chosen).tolist():
        sizes.setdefault(row.sites[row.made_at[index]], []).append(row.bytes[index])
    sites = (NativeSite(where, sum(found), len(found)) for where, found in sizes.items())
    return tuple(sorted(sites, key=lambda site: (-site.bytes, site.where)))


MAX_HOLDERS = 8
"""Maximum holders reported for an out-of-memory error. Heuristic."""
PEERS_HOLDERS = 3
"""Maximum holders of a rank whose own allocations did not fail."""


class Garbage(StrEnum):
    """Unreachable memory, by what frees it."""

    WAITS_FOR_GC = "waits for gc"
    NEVER_FREED = "never freed"
    """A cycle through C++ that gc cannot see."""


@dataclass(frozen=True)
class HeldThen:
    """The memory of one holder when memory was short."""

    bytes: int
    storages: int
    name: str
    """As written in code; "" for garbage."""
    where: str
    garbage: Garbage | None


@dataclass(frozen=True, kw_only=True)
class AliveAtFailure(RunFacts):
    """What was alive on a rank when memory was short, largest holders first."""

    bytes: int
    """Bytes of all storages at that time."""
    holders: tuple[HeldThen, ...]
    failed_rank: int | None
    """The rank whose allocation failed; None if a limit came near."""


@dataclass(frozen=True, kw_only=True)
class AllocationFailed(RunFacts):
    """A failed allocation that ended the script."""

    step: int
    """The step during which it failed."""
    at: str
    """The innermost line of the user, "" if there is none."""
    wanted_bytes: int | None
    error: str


@dataclass(frozen=True, kw_only=True)
class NoRoomForSnapshot(RunFacts):
    """There was no memory for a heap snapshot when the allocation failed."""


@dataclass(frozen=True, kw_only=True)
class CameNear(RunFacts):
    """A limit of the host's memory came near."""

    step: int
    inside: bool
    """Whether it was during that step, not after it."""
    used_bytes: int
    limit: str
    """`the control group's limit`."""
    limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class CaughtUnseen(RunFacts):
    """On the CPU only the failed allocation that ended the script is seen."""


@dataclass(frozen=True)
class Holder:
    """The largest holder on the rank whose allocation failed."""

    name: str
    """As written in code: `cache in main()`."""
    where: str
    bytes: int
    alive_bytes: int
    """Bytes of all storages at that time."""


def ranks_out_of_memory(run: Run) -> tuple[Rank, ...]:
    """The ranks that a failed allocation ended, the first one first."""
    failed = [rank for rank in run.ranks if rank.allocation_failures]
    return tuple(sorted(failed, key=lambda rank: (_failed_at(rank), rank.number)))


def largest_holder(rank: Rank) -> Holder | None:
    """The largest holder when a rank's allocation failed; None without a snapshot, or if a user cannot release it."""
    step = rank.allocation_failures[-1].step
    snapshot = _snapshot_at(rank, step) or _snapshot_at(rank, step, "oom")
    if snapshot is None:
        return None
    graph = snapshot.heap
    sizes = [(_bytes(snapshot, group), group) for group in group_storages(graph)]
    size, group = max(sizes, key=lambda pair: pair[0], default=(0, None))
    if group is None or group.freed or is_model(graph, group) or not is_named(graph, group):
        return None
    return Holder(*named(graph, group), size, snapshot.explained_bytes)


def _bytes(snapshot: HeapSnapshot, group: StorageGroup) -> int:
    """Bytes of a group; after a device failure, those on a device."""
    graph = snapshot.heap
    return (
        sum(int(graph.bytes[s]) for s in group.storages if s in graph.device)
        if snapshot.occasion == Occasion.OOM
        else group.bytes
    )


@dataclass(frozen=True)
class Shortage:
    """The facts about one rank that ran short of memory, or whose peer did."""

    rank: int
    failed_at: float
    """Time of its first failed allocation, infinite if there was none."""
    failures: tuple[RunFacts, ...]
    limits: tuple[RunFacts, ...]
    """The limits that came near."""


def shortage_of(rank: Rank) -> Shortage:
    """The facts about one rank."""
    failures = (*_of_failure(rank), *_of_peer(rank))
    return Shortage(rank.number, _failed_at(rank), failures, tuple(_of_limit(rank)))


def out_of_memory(shortages: Sequence[Shortage], device: str) -> tuple[RunFacts, ...]:
    """Facts of the rank that failed to allocate, the first one first, of its peers at that time, and of limits that
    came near.
    """
    ordered = sorted(shortages, key=lambda shortage: (shortage.failed_at, shortage.rank))
    facts = [fact for shortage in ordered for fact in shortage.failures]
    facts += [fact for shortage in ordered for fact in shortage.limits]
    return (*facts, CaughtUnseen()) if facts and device == "cpu" else tuple(facts)


def _failed_at(rank: Rank) -> float:
    return min((row.time for row in rank.allocation_failures), default=float("inf"))


def _of_failure(rank: Rank) -> Iterator[RunFacts]:
    rows = rank.allocation_failures
    for row in rows:
        yield AllocationFailed(
            rank=rank.number, step=row.step + 1, at=row.at, wanted_bytes=row.wanted_bytes, error=row.error
        )
    snapshot = _snapshot_at(rank, rows[-1].step) if rows else None
    if snapshot is not None:
        yield alive_then(rank, snapshot, rank.number)
    elif rows and rank.memory_shortages:
        yield NoRoomForSnapshot(rank=rank.number)


def _of_peer(rank: Rank) -> Iterator[RunFacts]:
    """The holders on a rank when the allocation of another had failed."""
    rows = _peers_rows(rank)
    snapshot = _snapshot_at(rank, rows[-1].step) if rows and not rank.allocation_failures else None
    if snapshot is not None:
        yield alive_then(rank, snapshot, rows[-1].of, PEERS_HOLDERS)


def _of_limit(rank: Rank) -> Iterator[RunFacts]:
    """A limit that came near, with the holders at that time unless a later snapshot in the same step shows more."""
    later = {row.step for row in rank.allocation_failures} | {row.step for row in _peers_rows(rank)}
    for row in rank.memory_shortages:
        if isinstance(row, LimitNear):
            yield CameNear(
                rank=rank.number,
                step=row.step + 1 if row.inside else row.step,
                inside=row.inside,
                used_bytes=row.used_bytes,
                limit=row.limit,
                limit_bytes=row.limit_bytes,
            )
            # a later snapshot in the same step has replaced this one
            snapshot = None if row.step in later else _snapshot_at(rank, row.step)
            if snapshot is not None:
                yield alive_then(rank, snapshot, None)


def _peers_rows(rank: Rank) -> list[PeerOutOfMemory]:
    return [row for row in rank.memory_shortages if isinstance(row, PeerOutOfMemory)]


def _snapshot_at(rank: Rank, step: int, occasion: str = "memory") -> HeapSnapshot | None:
    return next(
        (snapshot for snapshot in rank.heap_snapshots if snapshot.occasion == occasion and snapshot.step == step), None
    )


def alive_then(rank: Rank, snapshot: HeapSnapshot, failed_rank: int | None, most: int = MAX_HOLDERS) -> AliveAtFailure:
    """What was alive at a snapshot, largest holders first."""
    holders = holders_then(snapshot.heap, most)
    return AliveAtFailure(rank=rank.number, bytes=snapshot.explained_bytes, holders=holders, failed_rank=failed_rank)


def holders_then(graph: HeapGraph, most: int, among: frozenset[int] | None = None) -> tuple[HeldThen, ...]:
    """The holders of these storages, or of all, the largest first."""
    rows: dict[tuple[str, str, Garbage | None], tuple[int, int]] = {}
    for group in group_storages(graph):
        storages = [s for s in group.storages if among is None or s in among]
        if storages:
            holder = _holder(graph, group)
            size, count = rows.get(holder, (0, 0))
            rows[holder] = (size + int(graph.bytes[storages].sum()), count + len(storages))
    largest = sorted(rows.items(), key=lambda row: (-row[1][0], str(row[0])))[:most]
    return tuple(HeldThen(size, count, *holder) for holder, (size, count) in largest)


def _holder(graph: HeapGraph, group: StorageGroup) -> tuple[str, str, Garbage | None]:
    """(name, line, garbage): the name as written in code, or that it is unreachable."""
    if group.freed:
        return "", "", Garbage.WAITS_FOR_GC if group.freed > 0 else Garbage.NEVER_FREED
    return (*named(graph, group), None)


def is_named(graph: HeapGraph, group: StorageGroup) -> bool:
    """Whether a variable of a function or module leads to it."""
    return any(graph.object(int(graph.holder[r])).kind in (ObjectKind.FRAME, ObjectKind.NAMESPACE) for r in group.path)


def named(graph: HeapGraph, group: StorageGroup) -> tuple[str, str]:
    """`net.weight in main()` and its line, from the frame nearest to the memory, which the error's
    traceback may hold.
    """
    frames = [k for k, r in enumerate(group.path) if graph.object(int(graph.holder[r])).kind == ObjectKind.FRAME]
    path = _down_to_holder(graph, group.path[frames[-1] :] if frames else group.path)
    if not path:
        return graph.object(group.start).label, ""
    name = as_expression(graph, path, path[-1])
    if not frames:
        return name, ""
    local = graph.reference(path[0])
    frame = graph.object(local.holder)
    inside = f" in {frame.name}()"
    name = name if name.endswith(inside) else local.name.removeprefix("local ") + inside
    return name, local.where or frame.where


def _down_to_holder(graph: HeapGraph, path: tuple[int, ...]) -> tuple[int, ...]:
    """A path to the first tensor, or to the container of many."""
    tensor = next(
        (
            k
            for k, r in enumerate(path)
            if graph.object(int(graph.held[r])).kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER)
        ),
        None,
    )
    if tensor is None:
        return ()
    upto = path[: tensor + 1]
    while len(upto) > 1 and generic(graph.reference(upto[-1]).name) == "[i]":
        upto = upto[:-1]
    return upto


@dataclass(frozen=True, kw_only=True)
class DeviceFailed(RunFacts):
    """A failed allocation on a device that ended the script."""

    failure: DeviceFailure


@dataclass(frozen=True, kw_only=True)
class RoomThen(RunFacts):
    """Idle reserved memory at the failure, and what would have helped, from the allocator's snapshot."""

    failure: OutOfMemory


def device_failures(rank: Rank) -> tuple[RunFacts, ...]:
    """For a rank ended by a failed device allocation: the figures, the holders, and the reason for lack of room."""
    row = fatal(rank)
    if row is None:
        return ()
    facts: list[RunFacts] = [DeviceFailed(rank=rank.number, failure=row)]
    snapshot = next((k for k in rank.heap_snapshots if k.occasion == Occasion.OOM and k.step == row.step), None)
    if snapshot is not None and row.looked:
        facts.append(alive_then(rank, snapshot, rank.number))
    then = _in_snapshot(rank, row) if row.looked else None  # a snapshot file is written at heap snapshots only
    return (*facts, RoomThen(rank=rank.number, failure=then)) if then is not None else tuple(facts)


def _in_snapshot(rank: Rank, row: DeviceFailure) -> OutOfMemory | None:
    """The failure in the snapshot written for it: the last one of that device."""
    name = snapshot_name(row.kind, row.step, Occasion.OOM)
    return next(
        (
            device.out_of_memory[-1]
            for report in rank.memory_snapshots
            if report.name == name
            for device in report.devices
            if device.device == row.device and device.out_of_memory
        ),
        None,
    )


def fatal(rank: Rank) -> DeviceFailure | None:
    """The failure that ended the script: the last one, in the step of the final error."""
    rows, ends = rank.device_failures, rank.allocation_failures
    if not rows or not ends or rank.ended.how not in (EndKind.RAISED, EndKind.HUNG):
        return None
    return rows[-1] if rows[-1].step == ends[-1].step else None


def caught(rank: Rank) -> tuple[DeviceFailure, ...]:
    """The failures that the script, or a library that tries sizes, caught."""
    return rank.device_failures if fatal(rank) is None else rank.device_failures[:-1]


MAX_LINES = 8
"""Maximum allocation sites and holders reported. Heuristic."""


@dataclass(frozen=True)
class MadeAt:
    """The bytes alive at the peak from one allocation site."""

    bytes: int
    storages: int
    where: str
    """`train.py:41 forward (aten::addmm)`; "" if the allocation was not seen."""


@dataclass(frozen=True)
class RiseFacts:
    """The rise of tensor memory above the level at the start of the test."""

    bytes: int
    allowed_bytes: int
    at: str
    """The operation after which the peak was reached."""
    made: tuple[MadeAt, ...]
    held: tuple[HeldThen, ...]
    returned: tuple[str, int]
    """The operation in progress, and the bytes that it was about to return, which had no holder yet."""
    held_bytes: int
    """Additional bytes when the holders were inspected: the peak, or slightly less."""
    devices: tuple[tuple[str, int], ...]
    """Bytes by device at that time."""
