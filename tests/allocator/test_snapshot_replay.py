"""Replaying allocator events handles reused addresses, pending frees and incomplete history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.snapshots.building import OTHER, TRAIN, block, event, freed, segment, snapshot

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


def test_addresses_are_paired_in_order_when_reused(read: Read) -> None:
    trace = [event("alloc", 1, 100), *freed(1, 100), event("alloc", 1, 300), *freed(1, 300), event("alloc", 1, 200)]
    played = replay(read(snapshot([segment(block(1, 512, requested=200))], trace)), 0)
    assert played.sizes[played.live].tolist() == [200]
    assert played.traced_curve.tolist() == [100, 100, 0, 300, 300, 0, 200]
    assert (len(played.ghosts), played.unmatched, played.pending_curve.max()) == (0, 0, 0)


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


def test_a_live_allocation_that_no_block_confirms_is_told(read: Read) -> None:
    report = device_of(read(snapshot([], [event("alloc", 1, 100), event("alloc", 2, 100), *freed(2, 100)])))
    assert any("1 allocations alive" in note for note in report.notes)


def test_pending_free_at_the_end(read: Read) -> None:
    blocks = segment(block(1, 512, "active_pending_free", 100, TRAIN), block(513, 512, requested=5))
    trace = [
        event("alloc", 1, 100),
        event("alloc", 513, 5),
        event("free_requested", 1, 100),
        event("alloc", 3, 1),
        *freed(3, 1),
    ]
    report = device_of(read(snapshot([blocks], trace)))
    assert (report.pending.blocks, report.pending.bytes, report.pending.requests, report.pending.highest_bytes) == (
        1,
        512,
        1,
        100,
    )
    assert report.pending.sites[0].site.where == "train.py:12 step"
    assert (report.active_bytes, report.allocated_bytes) == (1024, 512)


def test_a_lone_pending_request_is_no_sign_of_skipped_completions(read: Read) -> None:
    trace = [event("alloc", 1, 100), event("free_requested", 1, 100)]
    played = replay(read(snapshot([segment(block(1, 512, "active_pending_free", 100))], trace)), 0)
    assert played.freed_by == "free_completed"
    assert played.pending.tolist() == [1]
    assert played.traced_curve.tolist() == [100, 100]


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


def test_skipped_requests_change_nothing(read: Read) -> None:
    trace = [event("alloc", 1, 100), event("free_completed", 1, 100), event("alloc", 1, 30)]
    assert replay(read(snapshot([segment(block(1, 512, requested=30))], trace)), 0).traced_curve.tolist() == [
        100,
        0,
        30,
    ]


def test_without_any_release_reuse_and_final_blocks_tell_what_died(read: Read) -> None:
    trace = [event("alloc", 1, 100), event("alloc", 2, 7), event("alloc", 1, 50), event("alloc", 3, 1)]
    told = read(snapshot([segment(block(1, 512, requested=50))], trace))
    played = replay(told, 0)
    assert played.sizes[played.live].tolist() == [50]
    assert played.unmatched == 0
    assert any("no frees were recorded" in note for note in device_of(told).notes)


def test_skipped_allocations_cannot_be_replayed(read: Read) -> None:
    report = device_of(read(snapshot([segment(block(1, 512))], freed(7, 100) + freed(8, 100))))
    assert report.history == "none"
    assert any("allocations were skipped" in note for note in report.notes)


def test_one_event_is_no_history(read: Read) -> None:
    report = device_of(read(snapshot([segment(block(1, 512))], [event("free_completed", 9, 8)])))
    assert report.history == "none"
    assert any("there is no history" in note for note in report.notes)


def test_overflow_flag_makes_history_partial(read: Read) -> None:
    data = snapshot([segment(block(1, 512))], [event("alloc", 1, 512), event("alloc", 2, 9), *freed(2, 9)])
    assert device_of(read(data)).history == "complete"
    for flag in ({"trace_alloc_overflowed": [True]}, {"allocator_settings": {"trace_alloc_overflowed": True}}):
        assert device_of(read(data | flag)).history == "partial"


def test_state_at_out_of_memory_not_at_the_dump(read: Read) -> None:
    failure = {
        "action": "oom",
        "device_free": 77,
        "size": 4096,
        "stream": 0,
        "time_us": 1_760_000_000_500_000,
        "frames": OTHER,
    }
    trace = [
        event("segment_alloc", 1, 2048),
        event("alloc", 1, 1000, 0, TRAIN),
        event("alloc", 2, 500, 0, OTHER),
        event("segment_free", 9, 512),
        failure,
        *freed(1, 1000, 500_001),
        *freed(2, 500, 500_001),
        event("snapshot", 0, 0),
    ]
    report = device_of(read(snapshot([segment(block(1, 2048, "inactive"))], trace)))
    (told,) = report.out_of_memory
    assert (told.event, told.requested_bytes, told.device_free_bytes) == (4, 4096, 77)
    assert (told.alive_bytes, told.reserved_bytes, told.at) == (1500, 2048, 0.5)
    assert [(entry.site.where, entry.bytes) for entry in told.alive_sites] == [
        ("train.py:12 step", 1000),
        ("data.py:40 load", 500),
    ]
    assert told.site.where == "data.py:40 load"
    assert report.requested_bytes == 0


def test_annotate_and_snapshot_events_change_no_accounting(read: Read) -> None:
    trace = [
        event("alloc", 1, 100),
        {"action": "annotate", "addr": 1, "user_metadata": "weights"},
        event("snapshot", 0, 999),
    ]
    assert replay(read(snapshot([segment(block(1, 512, requested=100))], trace)), 0).curve.tolist() == [100, 100, 100]


def test_expandable_segments_map_and_unmap(read: Read) -> None:
    trace = [
        event("segment_map", 1, 2048),
        event("alloc", 1, 9),
        event("segment_unmap", 2049, 1024),
        event("segment_map", 1, 4096),
    ]
    played = replay(read(snapshot([segment(block(1, 4096, requested=9))], trace)), 0)
    assert played.reserved_curve.tolist() == [1024, 1024, 0, 4096]


def test_devices_are_replayed_apart(read: Read) -> None:
    segments = [segment(block(1, 512, requested=3)), segment(block(1, 512, requested=4), device=1)]
    report = analyse(
        read(snapshot(segments, [event("alloc", 1, 3)], [event("alloc", 1, 4), event("alloc", 7, 4), *freed(7, 4)]))
    )
    assert [(device.device, device.live_bytes, device.ghost_blocks) for device in report.devices] == [
        (0, 3, 0),
        (1, 4, 0),
    ]


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
