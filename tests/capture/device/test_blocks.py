"""Active bytes of the allocator are divided into held, awaiting gc, native and pending."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.devices.fake_device import AUTOGRAD, block, segment
from support.devices.fake_device_memory import FakeDeviceMemory, of_tensors

from leakscope.findings.oom import DeviceLook, device_looks
from leakscope.heap.snapshot import SnapshotContext, look
from leakscope.memory_snapshot.model import Frame
from leakscope.recorder.allocator_monitor import allocation_site_of
from leakscope.recorder.lifetimes import dispatch_mode as dispatching
from leakscope.run.reader import read_run
from leakscope.run.writer import write_run

Make = Callable[..., FakeDeviceMemory]
FAR = 0x7F00_0000_0000
HELD, GARBAGE = 1 << 20, 3 << 20


def recorded(at: FakeDeviceMemory, path: Path) -> tuple[DeviceLook, ...]:
    at.folder.close()
    write_run(path, {"command": ["train.py"], "ranks": 1})
    return device_looks(read_run(path).ranks[0])


@pytest.fixture
def kept() -> list[torch.Tensor]:
    return [torch.ones(HELD // 4), torch.ones(HELD // 4)[::2]]


def in_garbage() -> torch.Tensor:
    holder: dict[str, object] = {"tensor": torch.ones(GARBAGE // 4)}
    holder["self"] = holder
    return holder["tensor"]  # type: ignore[return-value]


@pytest.mark.parametrize("cheap", [True, False], ids=["segments alone", "whole snapshots only"])
def test_active_bytes_are_held_for_gc_native_or_pending(
    fake_device: Make, tmp_path: Path, kept: list[torch.Tensor], cheap: bool
) -> None:
    gc.disable()
    try:
        at = fake_device(cheap=cheap)
        at.module.use()
        at.state.snapshot["segments"] = of_tensors(
            [*kept, in_garbage()],
            segment(
                block(FAR, 4096, frames=AUTOGRAD),
                block(FAR + 4096, 1024, "active_pending_free"),
                block(FAR + 5120, 512, "inactive"),
            ),
            segment(block(FAR, 8192), device=1),
        )
        seen = at.look(3)
        (zero, one) = recorded(at, tmp_path)
    finally:
        gc.enable()
    assert (zero.held, zero.waiting, zero.native, zero.pending) == (2 * (HELD + 512), GARBAGE + 512, 4096, 1024)
    assert zero.held + zero.waiting + zero.native + zero.pending == zero.active
    assert (one.active, one.native) == (8192, 8192)
    assert zero.outside == (20 << 30) - zero.reserved
    assert [(site.where, site.bytes) for site in zero.sites] == [
        ("no Python frames (autograd or another native thread)", 4096)
    ]
    made = [text for place, text in seen.heap.made_at.items() if seen.heap.bytes[place] in (HELD, GARBAGE)]
    assert made == ["train.py:41 forward"] * 3


def test_a_lazy_clone_is_joined_and_stays_lazy(fake_device: Make, kept: list[torch.Tensor]) -> None:
    clone = torch._lazy_clone(kept[0])
    at = fake_device()
    at.module.use()
    at.state.snapshot["segments"] = of_tensors(kept[1:], segment(block(torch._C._data_address(clone), HELD)))
    at.look(3)
    assert torch._C._is_cow_tensor(clone) and torch._C._data_address(clone) == torch._C._data_address(kept[0])


def test_nothing_is_joined_for_a_script_that_records_itself(
    fake_device: Make, tmp_path: Path, kept: list[torch.Tensor]
) -> None:
    at = fake_device(wanted="always")
    at.module.use()
    at.module.memory._record_memory_history()
    at.look(3)
    at.memory.step(3, 1.0)
    at.folder.close()
    assert at.state.called("snapshot") == at.state.called("segments") == 0, (
        "each would leave an event in the script's ring"
    )
    assert not (tmp_path / "rank_0000" / "device_blocks.jsonl").exists()


def test_files_are_kept_where_something_was_found(fake_device: Make, tmp_path: Path) -> None:
    at = fake_device()
    at.module.use()
    gc.collect()
    for step, counted in ((3, 10 << 20), (5, 10 << 20), (7, 10 << 20)):
        at.look(step, counted=counted)
    assert not list(tmp_path.glob("rank_0000/*.pickle")), "nothing grew"
    for step in range(9, 19):
        at.look(step, counted=(step + 10) << 20)
    names = sorted(path.name for path in tmp_path.glob("rank_0000/*.pickle"))
    assert names == [f"cpu_step_{step:06d}.pickle" for step in (9, 16, 17, 18)], "the first and the newest"
    with open(tmp_path / "rank_0000" / names[0], "rb") as stream:
        assert pickle.load(stream) == at.state.snapshot
    never = FakeDeviceMemory(tmp_path / "never", wanted="never")
    never.module.use()
    never.look(3), never.memory.step(3, 1.0)
    assert not list(tmp_path.glob("never/rank_0000/*.pickle")) and never.state.calls == []


def test_each_step_has_counters_and_the_layout_while_it_is_cheap(fake_device: Make, tmp_path: Path) -> None:
    at = fake_device()
    at.memory.step(1, 1.0)
    at.module.use()
    at.state.snapshot["segments"] = [segment(block(FAR, 4096), block(FAR + 4096, 1024, "active_pending_free"))]
    at.memory.step(2, 1e9)
    at.memory.step(3, 0.0)
    at.folder.close()
    rows = [json.loads(line) for line in (tmp_path / "rank_0000" / "device.jsonl").read_text().splitlines()]
    assert [(row["step"], "layout" in row) for row in rows] == [(2, True), (3, False)]
    (figures,) = rows[1]["devices"]
    assert (figures["allocated"], figures["active"], figures["reserved"]) == (4096, 5120, 5120)
    assert rows[0]["layout"][0]["pending"] == 1024
    assert at.state.called("mem_get_info") == 0, "asking the driver makes a context"


def test_nothing_of_a_snapshot_is_kept_once_it_is_written(fake_device: Make) -> None:
    at = fake_device(wanted="always")
    at.module.use()
    mark = "known by this"
    at.state.snapshot[mark] = 1
    reader = at.memory.block_reader()
    look(3, "step", SnapshotContext(hidden=(at,), blocks=reader))
    whole = [obj for obj in gc.get_objects() if type(obj) is dict and mark in obj and obj is not at.state.snapshot]
    assert whole == [] and at.state.called("snapshot") == 1


def test_the_allocation_site_is_the_users_line_else_the_librarys() -> None:
    library = Frame("linear", torch.nn.functional.__file__, 7)
    assert allocation_site_of((library, Frame("step", "/home/me/train.py", 12)), True) == "train.py:12 step"
    assert allocation_site_of((Frame("at::empty", "??", 0), library), True) == "<torch/nn/functional.py>:7 linear"
    generated = Frame("call", "/tmp/torchinductor_me/ab/cab.py", 9)
    assert allocation_site_of((generated, Frame("step", "/home/me/train.py", 12)), True) == "train.py:12 step"
    own = Frame("__torch_dispatch__", dispatching.__file__, 40)
    assert allocation_site_of((own, library), True) == "<torch/nn/functional.py>:7 linear"
    assert allocation_site_of((own,), True) == allocation_site_of((), True)
    assert (
        allocation_site_of((), True).startswith("no Python frames") and allocation_site_of((), False) == "not recorded"
    )
