"""Is the arithmetic of a failed allocation that of the moment it failed, and not of what the script left behind?"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT
from support.snapshots.building import TRAIN, block, event, freed, segment, snapshot
from support.snapshots.caching_allocator import KIB, MIB, CachingAllocator, Piece

from leakscope.allocator import read_bytes, read_snapshots
from leakscope.allocator.analysis import analyse
from leakscope.allocator.judging import judge_snapshots
from leakscope.allocator.moment.reserved import rounded
from leakscope.allocator.moment.room import Help, Remedy, Room, room_at, segment_size
from leakscope.allocator.replaying import replay
from leakscope.allocator.snapshot import Snapshot
from leakscope.report.snapshot.wording import room_texts

Read = Callable[[Any], Snapshot]
BASE = 1 << 40
SHORT = [event("alloc", 5, 512), *freed(5, 512)]
"""What was there for a moment."""
REAL = ROOT.parent / "shared" / "snapshots"


def out_of_memory(size: int, free: int, stream: int = 0) -> Any:
    return event("oom", 0, size, device_free=free, stream=stream)


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


def room_of(told: Snapshot) -> Room:
    (device,) = analyse(told).devices
    (failure,) = device.out_of_memory
    assert failure.room is not None
    return failure.room


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
    assert room_texts(device.out_of_memory[0]) == ("no release was recorded, so what was idle then is not told",)


def test_blocks_are_rounded_as_the_settings_say() -> None:
    sizes = np.array([1, 512, 513, 1 << 20, (1 << 20) + 1, 1100 << 20, 1280 << 20, 1281 << 20], np.int64)
    assert rounded(sizes).tolist() == [512, 512, 1024, 1 << 20, (1 << 20) + 512, 1100 << 20, 1280 << 20, 1281 << 20]
    quarters = rounded(sizes, (4,) * 16).tolist()
    assert quarters[:4] == [512, 512, 1024, 1 << 20] and quarters[4] == 5 << 18
    assert quarters[5:] == [1280 << 20, 1280 << 20, 1536 << 20]
    assert rounded(sizes, (0,) * 10 + (4,) + (0,) * 5).tolist()[4:6] == [(1 << 20) + 512, 1280 << 20]


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


def test_segments_are_as_large_as_torch_makes_them() -> None:
    sizes = [segment_size(size) for size in (1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 11 * MIB + 1)]
    assert sizes == [2 * MIB, 2 * MIB, 20 * MIB, 20 * MIB, 10 * MIB, 12 * MIB]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.booleans()), min_size=1, max_size=20), st.data())
def test_at_every_moment_what_is_reserved_is_alive_or_idle(
    made: Sequence[tuple[int, bool, bool]], data: st.DataObject
) -> None:
    trace: list[dict[str, Any]] = []
    left = []
    for number, (size, dies, goes) in enumerate(made):
        low, bytes_ = BASE + number * 64 * MIB, size * MIB
        trace += [event("segment_alloc", low, 32 * MIB), event("alloc", low, bytes_)]
        if dies:
            trace += freed(low, bytes_)
        if dies and goes:
            trace.append(event("segment_free", low, 32 * MIB))
        else:
            state = "inactive" if dies else "active_allocated"
            left.append(segment(block(low, bytes_, state), block(low + bytes_, 32 * MIB - bytes_, "inactive")))
    told = read_bytes("made", pickle.dumps(snapshot(left, trace)))
    played, its = replay(told, 0), told.traces[0]
    at = data.draw(st.integers(0, len(trace) - 1))
    room = room_at(told, played, its, at)
    assert room is not None
    reserved = int(played.reserved_curve[at])
    assert room.idle_bytes + int(played.curve[at]) == reserved == sum(row.reserved_bytes for row in room.pools)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([KIB, 300 * KIB, MIB, 3 * MIB, 9 * MIB, 15 * MIB, 33 * MIB]), st.integers(0, 2)),
        min_size=5,
        max_size=60,
    ),
    st.data(),
)
def test_the_arithmetic_is_that_of_an_allocator_that_really_fails(
    asked: Sequence[tuple[int, int]], data: st.DataObject
) -> None:
    device = CachingAllocator(capacity=120 * MIB, divisions=data.draw(st.sampled_from([0, 4])))
    alive: list[Piece] = []
    for size, stream in asked:
        if alive and data.draw(st.booleans()):
            device.release(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        made = device.allocate(size - data.draw(st.integers(0, 511)), stream)
        if made is None:
            break
        alive.append(made)
    while device.failure is None:
        made = device.allocate(data.draw(st.sampled_from([MIB, 7 * MIB, 40 * MIB])), data.draw(st.integers(0, 2)))
        alive += [made] if made is not None else []
    for piece in alive[data.draw(st.integers(0, 2)) :]:  # the script unwinds, but for what it keeps
        device.release(piece)
    if data.draw(st.booleans()):
        device.give_back()
    was, room = device.failure, room_of(read_bytes("made", pickle.dumps(device.snapshot())))
    assert (room.needed_bytes, room.missing_bytes, room.limited) == (was.needed, was.needed - was.free, False)
    assert (room.idle_bytes, room.largest_idle_bytes, room.empty_bytes) == (was.idle, was.largest, 0)
    assert {row.stream: row.reserved_bytes for row in room.pools} == was.reserved


@pytest.mark.skipif(not REAL.is_dir(), reason="the real snapshots are not kept in the repository (../shared/snapshots)")
@pytest.mark.parametrize("path", sorted(REAL.glob("*train*.pickle")) + sorted(REAL.glob("v2.6_tiny*")), ids=str)
def test_of_real_files_the_last_moment_is_the_end(path: Path) -> None:
    (told,) = read_snapshots(path)
    (device,) = analyse(told).devices
    trace = told.traces[device.device]
    room = room_at(told, replay(told, device.device), trace, len(trace) - 1)
    assert room is not None
    assert room.idle_bytes == device.fragmentation.inactive_bytes
    assert room.empty_bytes == device.fragmentation.releasable_bytes
    assert sum(row.reserved_bytes for row in room.pools) == device.reserved_bytes
