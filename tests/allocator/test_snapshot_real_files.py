"""Do real snapshots of torch 2.0 to 2.11 say what an independent replay computed for them?"""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from support import ROOT

from leakscope.memory_snapshot._event_columns import FIRST_SPELLED, EventRun, decode_runs
from leakscope.memory_snapshot._unpickle import load_plain
from leakscope.memory_snapshot.analysis import DeviceReport, analyse
from leakscope.memory_snapshot.reader import read_snapshots

FOLDER = ROOT.parent / "shared" / "snapshots"
NAMES = (
    "v2.0_legacy_history_infer.pickle",
    "v2.6_tiny_complete.pickle",
    "v2.6_train_complete_history.pickle",
    "v2.6_verl_pools_pending_free.pickle",
    "v2.10plus_python_stacks.pickle",
    "v2.11_train.pickle",
)

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the real snapshots are not kept in the repository (../shared/snapshots)"
)


def told_as_expected(devices: tuple[DeviceReport, ...]) -> dict[str, Any]:
    """The report in the words of expected.json."""
    return {
        "segments": sum(device.segments for device in devices),
        "reserved": sum(device.reserved_bytes for device in devices),
        "allocated": sum(device.allocated_bytes for device in devices),
        "active": sum(device.active_bytes for device in devices),
        "requested_active": sum(device.requested_bytes for device in devices),
        "blocks": {state: count for device in devices for state, count in device.blocks.items() if count},
        "pending_free_bytes": sum(device.pending.bytes for device in devices),
        "frag_inactive_bytes": sum(device.fragmentation.inactive_bytes for device in devices),
        "devices": {
            str(device.device): {
                "events": device.events,
                "actions": dict(device.actions),
                "live_end": device.live_events,
                "live_end_bytes": device.live_bytes,
                "peak_traced_bytes": device.traced_peak_bytes,
                "peak_index": device.traced_peak_event,
                "free_unknown": device.unknown_frees,
                "ghost_blocks": device.ghost_blocks,
                "ghost_bytes": device.ghost_bytes,
                "free_requested_not_completed": device.pending.requests,
                "oom": [failure.event for failure in device.out_of_memory],
            }
            for device in devices
        },
    }


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_independent_replay(name: str) -> None:
    expected = json.loads((FOLDER / "expected.json").read_text())[name]
    (snapshot,) = read_snapshots(FOLDER / name)
    assert told_as_expected(analyse(snapshot).devices) == expected


@pytest.mark.parametrize("name", NAMES)
def test_curve_ends_at_what_the_blocks_hold(name: str) -> None:
    (snapshot,) = read_snapshots(FOLDER / name)
    for device in analyse(snapshot).devices:
        assert sum(entry.bytes for entry in device.end_sites) == device.requested_bytes
        assert sum(entry.bytes for entry in device.peak_sites) == device.peak_bytes
        assert not [note for note in device.notes if "inconsistent" in note]


@pytest.mark.parametrize("name", NAMES)
def test_loader_agrees_with_pickle_value_for_value(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    plain, expected = load_plain(data), pickle.loads(data)
    for key in expected.keys() - {"device_traces"}:
        assert plain.root[key] == expected[key]
    for trace, written in zip(plain.root["device_traces"], expected["device_traces"], strict=True):
        told: list[dict[str, Any]] = []
        for item in trace:
            told += events_of(plain, item) if isinstance(item, EventRun) else [item]
        keys = ("action", "addr", "size", "stream", "time_us", "frames", "compile_context", "user_metadata")
        assert [only(event, keys) for event in told] == [only(event, keys) for event in written]


def only(event: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: event[key] for key in keys if key in event}


def events_of(plain: Any, run: EventRun) -> list[dict[str, Any]]:
    decoded = decode_runs(plain.lane, [run])
    columns = decoded.columns
    events = []
    for at in range(len(run)):
        event: dict[str, Any] = {
            key: int(columns[key][at]) for key in ("addr", "size", "stream", "time_us") if columns[key][at] != -1
        }
        event["action"] = plain.lane.value(int(columns["action"][at]))
        frames = int(columns["frames"][at])
        if frames != -1:
            spelt = frames <= FIRST_SPELLED
            event["frames"] = (
                plain.lane.frames_in(decoded.stacks[FIRST_SPELLED - frames])
                if spelt
                else []
                if frames == -2
                else plain.lane.value(frames)
            )
        for key in ("compile_context", "user_metadata"):
            index = int(columns[key][at])
            if index != -1:
                spelt = index <= FIRST_SPELLED
                event[key] = decoded.values[FIRST_SPELLED - index] if spelt else plain.lane.value(index)
        events.append(event)
    return events


def test_most_events_take_the_fast_lane() -> None:
    plain = load_plain((FOLDER / "v2.11_train.pickle").read_bytes())
    slow = [item for trace in plain.root["device_traces"] for item in trace if not isinstance(item, EventRun)]
    assert len(slow) < 400


def test_private_pools_and_pending_frees_are_told() -> None:
    (snapshot,) = read_snapshots(FOLDER / "v2.6_verl_pools_pending_free.pickle")
    (device,) = analyse(snapshot).devices
    assert [pool.pool for pool in device.pools] == [(0, 0), (0, 1), (0, 2)]
    assert device.pending.blocks == 9
    largest = device.end_sites[0].site
    assert largest.where == "vllm_rollout_spmd.py:114 __init__"
    assert largest.through == "worker/cache_engine.py:83 _allocate_kv_cache"


def test_first_user_frame_of_legacy_blocks_comes_from_their_history() -> None:
    (snapshot,) = read_snapshots(FOLDER / "v2.0_legacy_history_infer.pickle")
    assert analyse(snapshot).devices[0].end_sites[0].site.where == "pytorch_backend.py:195 allocate"
