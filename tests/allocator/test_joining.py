"""Active blocks of a memory snapshot are joined with the storages at their addresses."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.snapshots.building import block, segment, snapshot

from leakscope.memory_snapshot.analysis import Placed, join
from leakscope.memory_snapshot.model import Snapshot
from leakscope.memory_snapshot.verdict import files_in, snapshots_in

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


def test_files_of_a_rank_are_read_in_order(tmp_path: Path) -> None:
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
