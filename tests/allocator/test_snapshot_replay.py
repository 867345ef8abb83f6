"""Replaying allocator events handles reused addresses, pending frees and incomplete history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.snapshots.building import block, event, freed, segment, snapshot

from leakscope.memory_snapshot.analysis import DeviceReport, analyse
from leakscope.memory_snapshot.model import Snapshot
from leakscope.memory_snapshot.reader import read_bytes
from leakscope.memory_snapshot.replay import replay

Read = Callable[[Any], Snapshot]


def device_of(snapshot: Snapshot) -> DeviceReport:
    (device,) = analyse(snapshot).devices
    return device


def test_memory_is_freed_on_completion_not_on_request(read: Read) -> None:
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
    told = read(snapshot([blocks, segment(block(2, 512, requested=10))], trace))
    played = replay(told, 0)
    assert played.ghost_bytes == 7
    assert played.curve.tolist() == [147, 107, 117]
    report = device_of(told)
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
    told = read(snapshot([segment(block(1, 512, requested=30))], trace))
    played = replay(told, 0)
    assert played.freed_by == "free_requested"
    assert played.traced_curve.tolist() == [100, 0, 30, 35, 30]
    assert not len(played.pending)
    assert any("free_completed events were skipped" in note for note in device_of(told).notes)


def test_without_any_release_reuse_and_final_blocks_tell_what_died(read: Read) -> None:
    trace = [event("alloc", 1, 100), event("alloc", 2, 7), event("alloc", 1, 50), event("alloc", 3, 1)]
    told = read(snapshot([segment(block(1, 512, requested=50))], trace))
    played = replay(told, 0)
    assert played.sizes[played.live].tolist() == [50]
    assert played.unmatched == 0
    assert any("no frees were recorded" in note for note in device_of(told).notes)


Step = tuple[int, int, bool]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.booleans()), max_size=60), st.integers(0, 40))
def test_agrees_with_a_replay_one_event_at_a_time(moves: list[Step], evicted: int) -> None:
    """Random allocations and releases, of which the ring has dropped the oldest; blocks are what is really alive."""
    import pickle

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
    if any(one["action"] == "free_completed" for one in kept) or not any(
        one["action"] == "free_requested" for one in kept
    ):
        assert played.curve.tolist() == levels[evicted:]
        assert played.unmatched == 0
