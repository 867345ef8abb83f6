"""Replaying allocator events handles reused addresses, pending frees, incomplete history and failures."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.snapshots.building import TRAIN, block, event, freed, segment, snapshot
from support.snapshots.caching_allocator import KIB, MIB, CachingAllocator, Piece
from support.snapshots.failing import out_of_memory, room_of

from leakscope.memory_snapshot.analysis import DeviceReport, Placed, analyse, join
from leakscope.memory_snapshot.model import Snapshot
from leakscope.memory_snapshot.oom import Help, Remedy, Room, room_at
from leakscope.memory_snapshot.reader import read_bytes
from leakscope.memory_snapshot.replay import replay

Read = Callable[[Any], Snapshot]


def device_of(snapshot: Snapshot) -> DeviceReport:
    (device,) = analyse(snapshot).devices
    return device


def test_memory_is_freed_on_completion(read: Read) -> None:
    trace = [
        event("alloc", 1, 100),
        event("free_requested", 1, 100),
        event("alloc", 2, 50),
        event("free_completed", 1, 100),
    ]
    played = replay(read(snapshot([segment(block(2, 512, requested=50))], trace)), 0)
    assert played.traced_curve.tolist() == [100, 100, 150, 50]
    assert played.pending_curve.tolist() == [0, 100, 100, 0]
    assert played.freed_by == "free_completed"


def test_ghosts_and_unknown_frees_count_from_the_start(read: Read) -> None:
    trace = [event("alloc", 1, 100), event("free_completed", 9, 40), event("alloc", 2, 10)]
    blocks = segment(block(1, 512, requested=100), block(513, 512, requested=7), block(1025, 512, "inactive"))
    reported = read(snapshot([blocks, segment(block(2, 512, requested=10))], trace))
    played = replay(reported, 0)
    assert played.ghost_bytes == 7
    assert played.curve.tolist() == [147, 107, 117]
    report = device_of(reported)
    assert (report.history, report.unknown_frees, report.ghost_blocks) == ("partial", 1, 1)
    assert (report.peak_bytes, report.peak_event) == (147, 0)
    assert {entry.site.where: entry.bytes for entry in report.peak_sites} == {
        "no stack recorded": 107,
        "allocated before the trace begins": 40,
    }
    assert sum(entry.bytes for entry in report.end_sites) == 117


def test_skipped_completions_fall_back_to_requests(read: Read) -> None:
    trace = [
        event("alloc", 1, 100),
        event("free_requested", 1, 100),
        event("alloc", 1, 30),
        event("alloc", 2, 5),
        event("free_requested", 2, 5),
    ]
    reported = read(snapshot([segment(block(1, 512, requested=30))], trace))
    played = replay(reported, 0)
    assert played.freed_by == "free_requested"
    assert played.traced_curve.tolist() == [100, 0, 30, 35, 30]
    assert not len(played.pending)
    assert device_of(reported).notes


def test_without_releases_reuse_and_final_blocks_decide(read: Read) -> None:
    trace = [event("alloc", 1, 100), event("alloc", 2, 7), event("alloc", 1, 50), event("alloc", 3, 1)]
    reported = read(snapshot([segment(block(1, 512, requested=50))], trace))
    played = replay(reported, 0)
    assert played.sizes[played.live].tolist() == [50]
    assert played.unmatched == 0
    assert device_of(reported).notes


Step = tuple[int, int, bool]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.booleans()), max_size=60), st.integers(0, 40))
def test_agrees_with_a_replay_one_event_at_a_time(moves: list[Step], evicted: int) -> None:
    """Random allocations and releases, of which the ring has dropped the oldest; blocks are what is really alive."""
    events: list[dict[str, Any]] = []
    alive: dict[int, int] = {}
    levels: list[int] = []
    for address, wanted, waits in moves:
        size = alive.get(address, wanted)
        if address in alive:
            made = freed(address, size)
            if waits:
                made.insert(1, event("alloc", 100 + len(events), 1))
                alive[100 + len(events)] = 1
            del alive[address]
        else:
            alive[address] = size
            made = [event("alloc", address, size)]
        for one in made:
            change = {"alloc": one["size"], "free_completed": -one["size"]}.get(one["action"], 0)
            levels.append((levels[-1] if levels else 0) + change)
        events += made
    kept = events[evicted:]
    data = snapshot([segment(block(address, 512, requested=size)) for address, size in alive.items()], kept)
    played = replay(read_bytes("x", pickle.dumps(data)), 0)
    actions = {one["action"] for one in kept}
    if "free_completed" in actions or "free_requested" not in actions:
        assert played.curve.tolist() == levels[evicted:]
        assert played.unmatched == 0


BASE = 1 << 40


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.booleans()), min_size=1, max_size=20), st.data())
def test_reserved_memory_is_alive_or_idle_at_every_event(
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
    reported = read_bytes("made", pickle.dumps(snapshot(left, trace)))
    played, its = replay(reported, 0), reported.traces[0]
    at = data.draw(st.integers(0, len(trace) - 1))
    room = room_at(reported, played, its, at)
    assert room is not None
    reserved = int(played.reserved_curve[at])
    assert room.idle_bytes + int(played.curve[at]) == reserved == sum(row.reserved_bytes for row in room.pools)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([KIB, 300 * KIB, MIB, 3 * MIB, 9 * MIB, 15 * MIB, 33 * MIB]), st.integers(0, 2)),
        min_size=5,
        max_size=60,
    ),
    st.data(),
)
def test_the_room_is_that_of_a_model_of_the_allocator(asked: Sequence[tuple[int, int]], data: st.DataObject) -> None:
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


HIGH = 0xFFFF_8000_0000_0000


def test_storages_are_joined_with_their_blocks(read: Read) -> None:
    found = read(
        snapshot(
            [
                segment(block(0x1000, 512), block(0x1200, 512, "inactive"), block(0x1400, 512)),
                segment(block(0x1000, 1024), device=1),
                segment(block(HIGH, 2048), block(HIGH + 2048, 512, "active_pending_free")),
            ]
        )
    )
    storages = [
        Placed(0, 0x11FF, 1),  # the last byte of the first block
        Placed(0, 0x1200, 512),  # an inactive block
        Placed(1, 0x1000, 1024),  # the same address on another device
        Placed(0, HIGH + 16, 64),
        Placed(0, HIGH, 64),  # two in one block: the first that is listed
        Placed(0, HIGH + 2048, 512),  # asked to be released: no storage's any more
        Placed(0, 0xFFF, 1),  # before everything
        Placed(2, 0x1000, 512),  # no such device
    ]
    joined = join(found, storages)
    assert joined.storage.tolist() == [0, -1, 2, 3, -1]
    assert joined.unplaced.tolist() == [1, 6, 7]
