"""Active blocks of a memory snapshot are joined with the storages at their addresses."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT
from support.snapshots.building import block, segment, snapshot

from leakscope.memory_snapshot.analysis import Placed, join, layouts
from leakscope.memory_snapshot.model import INACTIVE, PENDING_FREE, Snapshot
from leakscope.memory_snapshot.reader import read_segments, read_snapshots
from leakscope.memory_snapshot.verdict import files_in, snapshots_in

Read = Callable[[Any], Snapshot]
FOLDER = ROOT.parent / "shared" / "snapshots"
REAL = sorted(FOLDER.glob("*.pickle")) if FOLDER.is_dir() else []


@pytest.mark.skipif(not REAL, reason="the real snapshots are not kept in the repository (../shared/snapshots)")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_every_byte_of_a_real_snapshot_is_a_storage_or_native_or_pending(path: Path) -> None:
    """Storages at the addresses of every second live block, as a process would have had them; the rest is native."""
    (found,) = read_snapshots(path)
    blocks = found.blocks
    live = np.flatnonzero((blocks.state != INACTIVE) & (blocks.state != PENDING_FREE))
    mine = live[::2]
    storages = [
        Placed(
            found.segments[int(blocks.segment[k])].device, int(blocks.address[k]) % (1 << 64), int(blocks.requested[k])
        )
        for k in mine
    ]
    joined = join(found, storages)
    assert len(joined.unplaced) == 0
    at = dict(zip(joined.blocks.tolist(), joined.storage.tolist(), strict=True))
    assert [at[int(k)] for k in mine] == list(range(len(mine)))
    held = blocks.size[joined.blocks[joined.storage >= 0]].sum()
    free = blocks.state[joined.blocks] == PENDING_FREE
    native = blocks.size[joined.blocks[(joined.storage < 0) & ~free]].sum()
    pending = blocks.size[joined.blocks[free]].sum()
    assert (held, native) == (blocks.size[mine].sum(), blocks.size[live[1::2]].sum())
    assert held + native + pending == sum(layout.active for layout in layouts(found))


@pytest.mark.skipif(not REAL, reason="the real snapshots are not kept in the repository (../shared/snapshots)")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_a_listing_of_segments_reads_as_the_whole_file_does(path: Path) -> None:
    (found,) = read_snapshots(path)
    with open(path, "rb") as stream:
        listed = read_segments(pickle.load(stream)["segments"])
    assert layouts(listed) == layouts(found)
    assert (listed.blocks.address == found.blocks.address).all()


HIGH = 0xFFFF_8000_0000_0000


def test_edges_of_blocks_other_devices_and_addresses_beyond_the_sign(read: Read) -> None:
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


def test_nothing_joins_nothing(read: Read) -> None:
    assert join(read(snapshot([])), [Placed(0, 1, 1)]).unplaced.tolist() == [0]
    joined = join(read(snapshot([segment(block(1, 512))])), [])
    assert joined.storage.tolist() == [-1]


def test_layouts_count_pools_pending_and_what_is_stuck(read: Read) -> None:
    found = read(
        snapshot(
            [
                segment(
                    block(0, 1024, requested=1000),
                    block(1024, 4096, "inactive"),
                    block(5120, 512, "active_pending_free"),
                ),
                segment(block(1 << 20, 2048, "inactive")),
                segment(block(2 << 20, 8192), pool=(0, 1)),
            ]
        )
    )
    (layout,) = layouts(found)
    assert (layout.reserved, layout.active, layout.allocated, layout.pending) == (15872, 9728, 9216, 512)
    assert (layout.stuck, layout.largest_stuck, layout.releasable, layout.private, layout.rounding) == (
        4096,
        4096,
        2048,
        8192,
        24,
    )


def test_a_ranks_files_are_found_in_order_and_a_damaged_one_is_a_sentence(tmp_path: Path) -> None:
    names = ["cuda_step_000003.pickle", "cuda_oom_000004.pickle", "xpu_step_000012.pickle", "cuda_last_000012.pickle"]
    for name in names:
        (tmp_path / name).write_bytes(pickle.dumps(snapshot([segment(block(0x1000, 512))])))
    (tmp_path / ".cuda_step_000013.pickle.77").write_bytes(b"half")
    (tmp_path / "mine.pickle").write_bytes(b"")
    assert [path.name for path in files_in(tmp_path)] == names
    reports, problems = snapshots_in(tmp_path, 3)
    assert ([report.name for report in reports], problems) == ([names[1], names[3]], ())
    assert reports[0].rank == 3 and reports[0].devices[0].active_bytes == 512
    (tmp_path / names[3]).write_bytes(b"\x80\x04cos\nsystem\n")
    reports, (problem,) = snapshots_in(tmp_path, 3)
    assert [report.name for report in reports] == [names[1]] and problem.count("\n") == 0 and names[3] in problem
