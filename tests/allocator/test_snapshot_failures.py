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
from leakscope.memory_snapshot.verdict import judge_snapshots
from leakscope.report.memory_snapshot import room_texts

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


def test_the_moment_of_the_failure_counts_and_not_the_end(read: Read) -> None:
    room = room_of(read(unwound(free=5 * MIB)))
    assert (room.needed_bytes, room.idle_bytes, room.largest_idle_bytes) == (30 * MIB, 20 * MIB, 20 * MIB)
    assert (room.empty_bytes, [row.reserved_bytes for row in room.pools]) == (0, [40 * MIB])


@pytest.mark.parametrize(("free", "enough"), [(5 * MIB, False), (10 * MIB, True)])
def test_each_remedy_is_held_against_what_was_asked_for(read: Read, free: int, enough: bool) -> None:
    helps = helps_of(room_of(read(unwound(free))))
    assert helps[Remedy.EMPTY_CACHE] == Help(Remedy.EMPTY_CACHE, 0, False)
    assert helps[Remedy.EXPANDABLE_SEGMENTS] == Help(Remedy.EXPANDABLE_SEGMENTS, 20 * MIB, enough)
    assert helps[Remedy.MAX_SPLIT_SIZE] == Help(Remedy.MAX_SPLIT_SIZE, 40 * MIB, enough)
    short = 30 * MIB - free
    assert helps[Remedy.SMALLER_BATCH] == Help(Remedy.SMALLER_BATCH, short, short <= 20 * MIB, 20 * MIB)


def test_it_is_told_line_by_line(read: Read) -> None:
    (device,) = analyse(read(unwound(free=5 * MIB))).devices
    assert room_texts(device.out_of_memory[0]) == (
        "to be reserved 30.00 MiB, device free 5.00 MiB: short by 25.00 MiB",
        "idle 20.00 MiB of 40.00 MiB reserved, largest piece for the request 20.00 MiB",
        "empty_cache: 0 B in segments that held nothing: not enough",
        "expandable_segments: 20.00 MiB of idle pieces could have been used together: not enough",
        "max_split_size_mb: 40.00 MiB in the largest segment that only smaller pieces kept: not enough",
        "smaller batch: 20.00 MiB alive were made in the forward, and 25.00 MiB were missing: not enough",
    )


def test_idle_memory_of_another_stream_or_of_a_private_pool_is_no_room(read: Read) -> None:
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


def test_mapped_pieces_side_by_side_are_one(read: Read) -> None:
    trace = [
        event("segment_map", BASE, 20 * MIB),
        event("segment_map", BASE + 20 * MIB, 20 * MIB),
        event("alloc", BASE, 15 * MIB),
        out_of_memory(60 * MIB, 0),
        event("segment_unmap", BASE + 20 * MIB, 20 * MIB),
    ]
    held = segment(block(BASE, 15 * MIB), block(BASE + 15 * MIB, 5 * MIB, "inactive"), is_expandable=True)
    room = room_of(read(snapshot([held], trace)))
    assert (room.expandable, room.idle_bytes, room.largest_idle_bytes) == (True, 25 * MIB, 25 * MIB)
    assert helps_of(room)[Remedy.EXPANDABLE_SEGMENTS].bytes == 0


def test_idle_memory_of_segments_for_small_requests_is_no_room_for_a_large_one(read: Read) -> None:
    there = [
        segment(block(BASE, MIB), block(BASE + MIB, MIB, "inactive"), segment_type="small"),
        segment(block(BASE << 1, 19 * MIB), block((BASE << 1) + 19 * MIB, MIB >> 1, "inactive")),
    ]
    large = room_of(read(snapshot(there, [*SHORT, out_of_memory(2 * MIB, 0)])))
    small = room_of(read(snapshot(there, [*SHORT, out_of_memory(MIB, 0)])))
    assert (large.needed_bytes, large.largest_idle_bytes) == (20 * MIB, MIB >> 1)
    assert (small.needed_bytes, small.largest_idle_bytes) == (2 * MIB, MIB)


def test_room_for_a_request_of_a_private_pool_is_that_pools(read: Read) -> None:
    pool = {"pool_id": (0, 3)}
    there = [
        segment(block(BASE, 10 * MIB), block(BASE + 10 * MIB, 30 * MIB, "inactive"), pool=(0, 3)),
        segment(block(BASE << 1, 50 * MIB, "inactive")),
    ]
    trace = [
        event("alloc", BASE, 10 * MIB, **pool),
        out_of_memory(40 * MIB, 0) | pool,
        event("segment_free", BASE << 2, 64 * MIB, **pool),
    ]
    room = room_of(read(snapshot(there, trace)))
    assert room.largest_idle_bytes == 64 * MIB, "what was given back later was the pool's then"
    assert [(row.pool, row.idle_bytes) for row in room.pools] == [((0, 3), 94 * MIB), ((0, 0), 50 * MIB)]
    assert helps_of(room)[Remedy.EMPTY_CACHE].bytes == 50 * MIB


def test_where_the_device_had_room_a_limit_of_the_process_refused(read: Read) -> None:
    (device,) = analyse(read(unwound(free=900 * MIB))).devices
    room = device.out_of_memory[0].room
    assert room is not None
    assert (room.limited, room.missing_bytes) == (True, None)
    helps = helps_of(room)
    assert helps[Remedy.EMPTY_CACHE].enough is False
    assert helps[Remedy.EXPANDABLE_SEGMENTS].enough is None, "20 MiB may or may not have been missing"
    first, *_, last = room_texts(device.out_of_memory[0])
    assert first == (
        "to be reserved 30.00 MiB, device free 900.00 MiB: that would have been enough, so a limit of the process's "
        "own refused it (set_per_process_memory_fraction), or the driver"
    )
    assert last.endswith("20.00 MiB alive were made in the forward, and 30.00 MiB at the most were missing: not enough")


def test_an_expandable_segment_grows_by_pages_from_what_is_idle_at_its_end(read: Read) -> None:
    held = segment(block(BASE, 30 * MIB), block(BASE + 30 * MIB, 10 * MIB, "inactive"), is_expandable=True)
    trace = [event("alloc", BASE, 30 * MIB), out_of_memory(45 * MIB, 8 * MIB)]
    room = room_of(read(snapshot([held], trace)))
    assert (room.needed_bytes, room.missing_bytes) == (40 * MIB, 32 * MIB)


def test_the_lowest_range_with_room_is_expanded_and_not_the_one_with_most_idle(read: Read) -> None:
    def mapped(at: int, *sizes: int) -> dict[str, Any]:
        return segment(
            block(at, sizes[0] * MIB),
            *(block(at + sizes[0] * MIB, size * MIB, "inactive") for size in sizes[1:]),
            is_expandable=True,
        )

    def needed(hole: int, free: int = 0) -> Room:
        there = [mapped(BASE, 40), mapped(BASE + (40 + hole) * MIB, 21, 19)]
        trace = [event("alloc", BASE, 40 * MIB), event("alloc", BASE + (40 + hole) * MIB, 21 * MIB)]
        return room_of(read(snapshot(there, [*trace, out_of_memory(110 * MIB, free * MIB)])))

    assert needed(hole=200).needed_bytes == 120 * MIB, "from the first one's end on, where nothing is idle"
    assert needed(hole=60).needed_bytes == 100 * MIB, "the hole is too small"
    assert not needed(hole=60, free=110).limited


def test_with_the_setting_on_even_a_first_segment_grows_by_pages(read: Read) -> None:
    trace = [*SHORT, out_of_memory(12 * MIB, 14 * MIB)]
    told = snapshot([], trace) | {"allocator_settings": {"expandable_segments": True}}
    room = room_of(read(told))
    assert (room.needed_bytes, room.missing_bytes, room.limited, room.expandable) == (20 * MIB, 6 * MIB, False, True)


@pytest.mark.parametrize(("kind", "size", "asked"), [("small", 2, 0.5), ("large", 20, 12)])
def test_a_setting_that_cannot_act_is_no_remedy(read: Read, kind: str, size: int, asked: float) -> None:
    low, high = segment(block(BASE, MIB >> 4), block(BASE + (MIB >> 4), size * MIB - (MIB >> 4), "inactive")), 7
    trace = [event("alloc", BASE, MIB >> 4), out_of_memory(int(asked * MIB), 0, stream=high)]
    room = room_of(read(snapshot([low | {"segment_type": kind}], trace)))
    assert helps_of(room)[Remedy.MAX_SPLIT_SIZE] == Help(Remedy.MAX_SPLIT_SIZE, 0, False)


def test_without_a_release_in_the_trace_nothing_is_told_to_be_idle(read: Read) -> None:
    trace = [
        event("segment_alloc", BASE, 100 * MIB),
        *(event("alloc", BASE, 80 * MIB) for _ in range(2)),
        out_of_memory(100 * MIB, 0),
    ]
    there = [segment(block(BASE, 80 * MIB), block(BASE + 80 * MIB, 20 * MIB, "inactive"))]
    (device,) = analyse(read(snapshot(there, trace))).devices
    assert device.out_of_memory[0].room is None
    assert room_texts(device.out_of_memory[0]) == ("no release was recorded, so idle memory at that point is unknown",)


def test_of_many_failures_the_last_is_told_too(read: Read) -> None:
    trace = [event("alloc", 5, 512), *(out_of_memory((30 - at) * MIB, 0) for at in range(20))]
    (device,) = analyse(read(snapshot([], trace))).devices
    asked = [failure.requested_bytes // MIB for failure in device.out_of_memory]
    assert asked == [30, 29, 28, 27, 26, 25, 24, 11]


@pytest.mark.parametrize("held", [1, 60])
def test_what_is_stuck_is_told_of_the_failure_and_not_of_what_the_script_left(read: Read, held: int) -> None:
    low = BASE + held * MIB
    trace = [
        event("alloc", BASE, held * MIB),
        event("alloc", low, (100 - held) * MIB),
        *(freed(low, (100 - held) * MIB) if held == 1 else ()),
        out_of_memory(300 * MIB, 0),
        *(freed(low, (100 - held) * MIB) if held != 1 else ()),
    ]
    there = [segment(block(BASE, held * MIB), block(low, (100 - held) * MIB, "inactive"))]
    concerns = judge_snapshots([analyse(read(snapshot(there, trace)))]).concerns
    stuck = [concern.bytes for concern in concerns if concern.kind == "fragmentation"]
    assert stuck == ([99 * MIB] if held == 1 else []), "40 MiB of the second were let go when it had failed"
