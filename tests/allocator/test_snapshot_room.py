"""Free memory computed for a failed allocation matches a model of the allocator and real files."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.snapshots.building import block, event, freed, segment, snapshot
from support.snapshots.caching_allocator import KIB, MIB, CachingAllocator, Piece
from support.snapshots.failing import room_of

from leakscope.memory_snapshot.oom import room_at
from leakscope.memory_snapshot.reader import read_bytes
from leakscope.memory_snapshot.replay import replay

BASE = 1 << 40


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


@settings(max_examples=40, deadline=None)
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
