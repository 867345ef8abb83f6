"""Device memory: history, blocks joined with storages, and failures, on a fake device."""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.devices.fake_device import AUTOGRAD, State, block, device_module, natives, segment
from support.devices.fake_device_memory import FakeDeviceMemory, of_tensors

from leakscope.findings.oom import DeviceSnapshot, device_snapshots
from leakscope.heap.snapshot import SnapshotContext, take_heap_snapshot
from leakscope.memory_snapshot.model import Frame
from leakscope.process.guard import Guard
from leakscope.process.patches import Patches
from leakscope.recorder.accelerator import Accelerator, described
from leakscope.recorder.allocator_monitor import ENTRIES, OVER, THEIRS, WAITING, MemoryHistory, allocation_site_of
from leakscope.recorder.lifetimes import dispatch_mode as dispatching
from leakscope.recorder.memory_limits import MAX_FREE_SNAPSHOTS
from leakscope.run.reader import read_run
from leakscope.run.writer import write_run


class Attached:
    """A history over a fake device, with the notes it made."""

    def __init__(self, wanted: bool = True, **known: object) -> None:
        self.state = State(**known)  # type: ignore[arg-type]
        self.module = device_module(self.state)
        self.device = described("cuda", self.module, (natives(self.state),))
        self.notes: list[str] = []
        self.begun = 0
        self.patches = Patches()
        self.history = MemoryHistory(self.device, wanted, self.notes.append, self._begin)
        self.history.attach(self.patches)

    def _begin(self) -> None:
        self.begun += 1


def test_history_begins_with_the_first_use() -> None:
    unused = Attached()
    unused.patches.take_out()
    assert unused.module._queued_calls == [] and unused.state.calls == []
    at = Attached()
    assert (at.history.state, at.state.calls, at.begun) == (WAITING, [], 0), (
        "a script that uses no device gets no context"
    )
    at.module.use()
    assert at.history.is_ours() and at.begun == 1
    assert at.state.calls == [
        ("record", {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": ENTRIES})
    ]


def test_at_the_end_history_is_off_and_all_is_as_found() -> None:
    at = Attached()
    record = at.device.record
    at.module.use()
    assert at.module.memory._record_memory_history is not record
    at.patches.take_out()
    assert not at.state.recording and at.history.state == OVER
    assert at.module.memory._record_memory_history is record
    assert at.module._queued_calls == []


def test_a_script_that_records_gets_its_own_events_only() -> None:
    at = Attached()
    at.module.use()
    at.state.snapshot["device_traces"] = [["leakscope's"]]
    at.module.memory._record_memory_history(max_entries=7)
    assert at.state.snapshot["device_traces"] == [[]], "ours are gone before theirs begin"
    at.state.snapshot["device_traces"] = [["the script's"]]
    assert at.history.state == THEIRS and not at.history.is_ours()
    assert len(at.notes) == 1
    at.patches.take_out()
    assert at.state.recording and at.state.snapshot["device_traces"] == [["the script's"]]


def test_an_allocator_without_history_is_a_note_and_no_error() -> None:
    at = Attached(refuses="cudaMallocAsync does not yet support recordHistory")
    at.module.use()
    assert at.state.initialized and at.history.state == OVER
    assert len(at.notes) == 1 and "cudaMallocAsync" in at.notes[0]


@pytest.mark.process
def test_a_forked_child_touches_nothing() -> None:
    at = Attached()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        at.module.use()
        at.module.memory._record_memory_history()
        at.patches.take_out()
        os._exit(len(at.state.calls) - 1 + len(at.notes) + at.begun)
    assert os.waitpid(child, 0)[1] == 0, "one call, the child's own"


def test_the_calls_of_torch_are_found_on_each_backend() -> None:
    cuda = described("cuda", torch.cuda, (torch._C,))
    assert cuda.record is torch.cuda.memory._record_memory_history
    assert cuda.segments is not None
    assert cuda.record_arguments(5) == {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": 5}
    assert cuda.queue is torch.cuda._queued_calls
    xpu = described("xpu", torch.xpu, (torch._C,))
    assert xpu.snapshot is getattr(torch.xpu.memory, "_snapshot", None)
    assert xpu.segments is None, "its listing knows no include_traces"
    assert xpu.record_arguments(5) == {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": 5}
    mtia = described("mtia", torch.mtia, (torch._C,))
    assert mtia.record_arguments(5) == {"enabled": "all", "stacks": "python", "max_entries": 5}
    assert all(isinstance(found, Accelerator) for found in (cuda, xpu, mtia))


Make = Callable[..., FakeDeviceMemory]
FAR = 0x7F00_0000_0000
HELD, GARBAGE = 1 << 20, 3 << 20


def recorded(at: FakeDeviceMemory, path: Path) -> tuple[DeviceSnapshot, ...]:
    at.folder.close()
    write_run(path, {"command": ["train.py"], "ranks": 1})
    return device_snapshots(read_run(path).ranks[0])


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
        seen = at.take_snapshot(3)
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
    at.take_snapshot(3)
    assert torch._C._is_cow_tensor(clone) and torch._C._data_address(clone) == torch._C._data_address(kept[0])


def test_nothing_is_joined_for_a_script_that_records_itself(
    fake_device: Make, tmp_path: Path, kept: list[torch.Tensor]
) -> None:
    at = fake_device(wanted="always")
    at.module.use()
    at.module.memory._record_memory_history()
    at.take_snapshot(3)
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
        at.take_snapshot(step, counted=counted)
    assert not list(tmp_path.glob("rank_0000/*.pickle")), "nothing grew"
    for step in range(9, 19):
        at.take_snapshot(step, counted=(step + 10) << 20)
    names = sorted(path.name for path in tmp_path.glob("rank_0000/*.pickle"))
    assert names == [f"cpu_step_{step:06d}.pickle" for step in (9, 16, 17, 18)], "the first and the newest"
    with open(tmp_path / "rank_0000" / names[0], "rb") as stream:
        assert pickle.load(stream) == at.state.snapshot
    never = FakeDeviceMemory(tmp_path / "never", wanted="never")
    never.module.use()
    never.take_snapshot(3), never.memory.step(3, 1.0)
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
    take_heap_snapshot(3, "step", SnapshotContext(hidden=(at,), blocks=reader))
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


@pytest.fixture
def at(fake_device: Make) -> FakeDeviceMemory:
    made = fake_device()
    assert made.state.observers == [], "before the device is in use torch may segfault (pytorch#107330)"
    made.module.use()
    made.module.use()
    assert len(made.state.observers) == 1
    return made


def rows(at: FakeDeviceMemory, path: Path) -> list[dict[str, Any]]:
    at.folder.close()
    return [json.loads(line) for line in (path / "rank_0000" / "device_out_of_memory.jsonl").read_text().splitlines()]


def run_out(at: FakeDeviceMemory, wanted: int = 2 << 30) -> None:
    """What torch does: every observer is called, and then the error is raised."""
    for observer in at.state.observers:
        observer(0, wanted, 80 << 30, 1 << 20)


def test_a_failure_is_recorded_with_figures_and_place(at: FakeDeviceMemory, tmp_path: Path) -> None:
    taken: list[int] = []
    at.memory.failures.snapshot = lambda: bool(taken.append(1)) or True
    at.memory.failures.steps = lambda: 4
    run_out(at)
    (row,) = rows(at, tmp_path)
    wanted = {"step": 4, "kind": "cpu", "device": 0, "wanted_bytes": 2 << 30, "free_bytes": 1 << 20}
    assert wanted.items() <= row.items()
    assert row["at"].endswith("run_out") and "test_device_memory.py:" in row["at"]
    assert row["looked"] and taken == [1]
    assert at.memory.failures.has_snapshot(4) and not at.memory.failures.has_snapshot(5)


def test_an_error_of_the_snapshot_is_a_note(at: FakeDeviceMemory, tmp_path: Path) -> None:
    def breaks() -> bool:
        raise RuntimeError("no memory for that either")

    at.memory.failures.snapshot = breaks
    run_out(at)
    at.folder.close()
    notes = (tmp_path / "rank_0000" / "notes.jsonl").read_text()
    assert "no memory for that either" in notes


def test_a_loop_that_fails_often_gets_a_few_snapshots(at: FakeDeviceMemory, tmp_path: Path) -> None:
    taken: list[int] = []

    def snapshot() -> bool:
        taken.append(1)
        at.memory.failures._spent += 1e6  # as if each had taken long
        return True

    at.memory.failures.snapshot = snapshot
    for _ in range(20):
        run_out(at)
    assert len(taken) == MAX_FREE_SNAPSHOTS and len(rows(at, tmp_path)) == 20
    assert not at.memory.failures.has_snapshot(0), "the last one has no look of its own"


def test_after_the_end_the_observer_does_nothing(fake_device: Make, tmp_path: Path) -> None:
    at = fake_device()
    at.module.use()
    (observer,) = at.state.observers
    at.patches.take_out()
    observer(0, 1, 2, 3)
    alive = weakref.ref(at.memory.failures)
    at.patches = at.memory = None  # type: ignore[assignment]
    del at
    gc.collect()
    assert alive() is None, "torch keeps the observer for ever"
    observer(0, 1, 2, 3)
    assert not (tmp_path / "rank_0000" / "device_out_of_memory.jsonl").exists()


def test_an_error_of_ours_does_not_replace_the_allocators(
    fake_device: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def planted(guard: Guard, entry: str, function: Callable[..., object]) -> Callable[..., object]:
        def fails(*_: object) -> None:
            raise MemoryError("ours")

        return fails if entry == "out-of-memory observer" else function

    monkeypatch.setattr(Guard, "register", planted)
    made = fake_device()
    made.module.use()
    run_out(made)
    run_out(made)
    (line,) = capfd.readouterr().err.splitlines()
    assert "MemoryError: ours" in line
