"""Active blocks of a memory snapshot are joined with the storages at their addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.snapshots.building import block, segment, snapshot

from leakscope.memory_snapshot.analysis import Placed, join
from leakscope.memory_snapshot.model import Snapshot

Read = Callable[[Any], Snapshot]


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
