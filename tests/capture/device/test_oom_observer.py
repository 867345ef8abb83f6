"""The state at an out-of-memory error is recorded before unwinding, and the error is unchanged."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.devices.fake_device_memory import FakeDeviceMemory

from leakscope.process.guard import Guard
from leakscope.recorder.memory_limits import MAX_FREE_SNAPSHOTS

Make = Callable[..., FakeDeviceMemory]


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
    assert row["at"].endswith("run_out") and "test_oom_observer.py:" in row["at"]
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
