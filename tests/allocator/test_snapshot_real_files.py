"""Memory snapshots of torch 2.0 to 2.11 match the results of an independent replay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import ROOT

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


def as_expected(devices: tuple[DeviceReport, ...]) -> dict[str, Any]:
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
    assert as_expected(analyse(snapshot).devices) == expected
