"""Out-of-memory reports use the allocator's state at the failure, not at the end of the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.snapshots.building import TRAIN, block, event, freed, segment, snapshot
from support.snapshots.caching_allocator import MIB
from support.snapshots.failing import out_of_memory, room_of

from leakscope.memory_snapshot.analysis import analyse
from leakscope.memory_snapshot.model import Snapshot
from leakscope.memory_snapshot.oom import Help, Remedy, Room

Read = Callable[[Any], Snapshot]
BASE = 1 << 40
SHORT = [event("alloc", 5, 512), *freed(5, 512)]
"""What was there for a moment."""


def unwound(free: int, wanted: int = 30 * MIB) -> Any:
    """40 MiB are reserved; 10 at each end are alive when 30 more are asked for; then all of it is given back."""
    trace = [
        event("segment_alloc", BASE, 40 * MIB),
        event("alloc", BASE, 10 * MIB, frames=TRAIN),
        event("alloc", BASE + 10 * MIB, 20 * MIB, frames=TRAIN),
        event("alloc", BASE + 30 * MIB, 10 * MIB, frames=TRAIN),
        *freed(BASE + 10 * MIB, 20 * MIB),
        out_of_memory(wanted, free),
        *freed(BASE, 10 * MIB),
        *freed(BASE + 30 * MIB, 10 * MIB),
        event("segment_free", BASE, 40 * MIB),
    ]
    return snapshot([], trace)


def helps_of(room: Room) -> dict[Remedy, Help]:
    return {remedy.remedy: remedy for remedy in room.helps}


def test_the_state_at_the_failure_counts(read: Read) -> None:
    room = room_of(read(unwound(free=5 * MIB)))
    assert (room.needed_bytes, room.idle_bytes, room.largest_idle_bytes) == (30 * MIB, 20 * MIB, 20 * MIB)
    assert (room.empty_bytes, [row.reserved_bytes for row in room.pools]) == (0, [40 * MIB])


@pytest.mark.parametrize(("free", "enough"), [(5 * MIB, False), (10 * MIB, True)])
def test_each_remedy_is_compared_with_the_request(read: Read, free: int, enough: bool) -> None:
    helps = helps_of(room_of(read(unwound(free))))
    assert helps[Remedy.EMPTY_CACHE] == Help(Remedy.EMPTY_CACHE, 0, False)
    assert helps[Remedy.EXPANDABLE_SEGMENTS] == Help(Remedy.EXPANDABLE_SEGMENTS, 20 * MIB, enough)
    assert helps[Remedy.MAX_SPLIT_SIZE] == Help(Remedy.MAX_SPLIT_SIZE, 40 * MIB, enough)
    short = 30 * MIB - free
    assert helps[Remedy.SMALLER_BATCH] == Help(Remedy.SMALLER_BATCH, short, short <= 20 * MIB, 20 * MIB)


def test_idle_memory_of_another_stream_or_pool_is_no_room(read: Read) -> None:
    there = [
        segment(block(BASE, 30 * MIB, "inactive"), block(BASE + 30 * MIB, 2 * MIB), stream=7),
        segment(block(BASE << 1, 50 * MIB, "inactive"), block((BASE << 1) + 50 * MIB, 2 * MIB), pool=(0, 3)),
        segment(block(BASE << 2, 4 * MIB, "inactive"), block((BASE << 2) + 4 * MIB, 2 * MIB)),
    ]
    room = room_of(read(snapshot(there, [*SHORT, out_of_memory(20 * MIB, 0)])))
    assert (room.idle_bytes, room.largest_idle_bytes) == (84 * MIB, 4 * MIB)
    assert [(row.pool, row.stream, row.largest_idle_bytes) for row in room.pools] == [
        ((0, 3), 0, 50 * MIB),
        ((0, 0), 7, 30 * MIB),
        ((0, 0), 0, 4 * MIB),
    ]
    assert helps_of(room)[Remedy.EXPANDABLE_SEGMENTS].bytes == 34 * MIB


def test_a_limit_of_the_process_is_recognized(read: Read) -> None:
    (device,) = analyse(read(unwound(free=900 * MIB))).devices
    room = device.out_of_memory[0].room
    assert room is not None
    assert (room.limited, room.missing_bytes) == (True, None)
    helps = helps_of(room)
    assert helps[Remedy.EMPTY_CACHE].enough is False
    assert helps[Remedy.EXPANDABLE_SEGMENTS].enough is None, "20 MiB may or may not have been missing"


def test_without_a_release_in_the_trace_nothing_is_idle(read: Read) -> None:
    trace = [
        event("segment_alloc", BASE, 100 * MIB),
        *(event("alloc", BASE, 80 * MIB) for _ in range(2)),
        out_of_memory(100 * MIB, 0),
    ]
    there = [segment(block(BASE, 80 * MIB), block(BASE + 80 * MIB, 20 * MIB, "inactive"))]
    (device,) = analyse(read(snapshot(there, trace))).devices
    assert device.out_of_memory[0].room is None
