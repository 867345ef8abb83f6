"""Free memory computed for a failed allocation matches a model of the allocator and real files."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT
from support.snapshots.building import block, event, freed, segment, snapshot
from support.snapshots.caching_allocator import KIB, MIB, CachingAllocator, Piece
from support.snapshots.failing import room_of

from leakscope.memory_snapshot.analysis import analyse
from leakscope.memory_snapshot.oom import room_at, rounded, segment_size
from leakscope.memory_snapshot.reader import read_bytes, read_snapshots
from leakscope.memory_snapshot.replay import replay

BASE = 1 << 40
REAL = ROOT.parent / "shared" / "snapshots"


def test_blocks_are_rounded_as_the_settings_say() -> None:
    sizes = np.array([1, 512, 513, 1 << 20, (1 << 20) + 1, 1100 << 20, 1280 << 20, 1281 << 20], np.int64)
    assert rounded(sizes).tolist() == [512, 512, 1024, 1 << 20, (1 << 20) + 512, 1100 << 20, 1280 << 20, 1281 << 20]
    quarters = rounded(sizes, (4,) * 16).tolist()
    assert quarters[:4] == [512, 512, 1024, 1 << 20] and quarters[4] == 5 << 18
    assert quarters[5:] == [1280 << 20, 1280 << 20, 1536 << 20]
    assert rounded(sizes, (0,) * 10 + (4,) + (0,) * 5).tolist()[4:6] == [(1 << 20) + 512, 1280 << 20]


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
