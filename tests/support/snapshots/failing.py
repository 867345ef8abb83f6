"""What tests of an allocation that fails share."""

from __future__ import annotations

from typing import Any

from leakscope.memory_snapshot.analysis import analyse
from leakscope.memory_snapshot.model import Snapshot
from leakscope.memory_snapshot.oom import Room
from support.snapshots.building import event


def out_of_memory(size: int, free: int, stream: int = 0) -> Any:
    return event("oom", 0, size, device_free=free, stream=stream)


def room_of(reported: Snapshot) -> Room:
    (device,) = analyse(reported).devices
    (failure,) = device.out_of_memory
    assert failure.room is not None
    return failure.room
