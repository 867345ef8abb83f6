"""A backend that registers itself, as torch_npu does, is recorded in a real run of the command.

The backend is a fake device: there is no accelerator here. Everything else is as for a real one: torch's registration,
the command, the recorder, the files, the report.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.run.reader import read_run

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

SCRIPT = """
    import sys, types
    import torch
    from support.devices.fake_device import State, TRAIN, block, device_module, natives, segment

    torch.set_num_threads(1)
    state = State()
    backend = device_module(state)
    sys.modules["torch_fakedevice"] = types.SimpleNamespace(_C=natives(state, "fakedevice"))
    torch.utils.rename_privateuse1_backend("fakedevice")
    torch._register_device_module("fakedevice", backend)

    def allocate(step):
        state.snapshot["segments"].append(segment(block(0x7000_0000 + (step << 24), 2 << 20, frames=TRAIN)))
        event = {"action": "alloc", "addr": 0x7000_0000 + (step << 24), "size": 2 << 20, "stream": 0}
        state.snapshot["device_traces"][0].append({**event, "time_us": 10 * step, "frames": TRAIN})

    def run_out():
        for observer in state.observers:
            observer(0, 4 << 30, 80 << 30, 1 << 20)
        raise torch.OutOfMemoryError("fakedevice out of memory. Tried to allocate 4.00 GiB.")

    def train(step):
        if step == 1:
            backend.use()
        if step:
            allocate(step)
        activation = torch.ones(1 << 18)
        if step == 4:
            try:
                run_out()
            except torch.OutOfMemoryError:
                pass
        if step == 10 and "die" in sys.argv:
            run_out()
        return net(activation[:8]).sum()

    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(12):
        train(step).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("recording:", state.recording, [call["enabled"] for name, call in state.calls if name == "record"])
"""


@pytest.fixture
def run_folder(script: Write, tmp_path: Path, with_support: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", with_support["PYTHONPATH"])
    script(SCRIPT)
    return tmp_path / "run"


def test_a_registered_backend_is_recorded_joined_and_told(run_folder: Path, leakscope: Command) -> None:
    told = leakscope("run", "--snapshot", "always", "--no-lifetimes", "-o", "run", "train.py")
    assert told.returncode == 23, told.stdout + told.stderr
    assert "recording: True ['all']" in told.stdout, "switched off after the script's main code, not before"
    run = read_run(run_folder, snapshots=True)
    (rank,) = run.ranks
    assert run.device == "fakedevice" and rank.steps[-1].counted_bytes == 11 * (2 << 20)
    names = sorted(path.name for path in (run_folder / "rank_0000").glob("*.pickle"))
    looks = [f"fakedevice_step_{look.step:06d}.pickle" for look in rank.looks if look.occasion == "step"]
    assert len(looks) >= 3
    assert names == sorted(["fakedevice_oom_000004.pickle", *looks, "fakedevice_end_000012.pickle"])
    assert [report.name for report in rank.snapshots] == [
        "fakedevice_oom_000004.pickle",
        "fakedevice_end_000012.pickle",
    ]
    assert rank.snapshots[1].devices[0].live_bytes == 11 * (2 << 20)
    findings = json.loads((run_folder / "findings.json").read_text())["findings"]
    (native,) = [finding for finding in findings if finding["rule"] == "native-hold"]
    assert native["allocated_at"] == ["train.py:41 forward"] and native["bytes_per_step"] == 2 << 20
    assert [f["severity"] for f in findings if f["rule"] == "allocator"] == ["note"], "a failure that was caught"
    assert "\nDevice     " in told.stdout and "reserved on fakedevice:0" in told.stdout
    assert "Device memory" in (run_folder / "report.html").read_text()


def test_memory_that_runs_out_is_told_with_its_holders_and_the_script_fails_as_ever(
    run_folder: Path, leakscope: Command
) -> None:
    told = leakscope("run", "-q", "--no-lifetimes", "-o", "run", "train.py", "die")
    assert told.returncode == 1 and "torch.OutOfMemoryError" in told.stderr.splitlines()[-1].replace("_C.", "")
    (rank,) = read_run(run_folder).ranks
    assert [look.occasion for look in rank.looks if look.occasion in ("oom", "memory")] == ["oom", "oom"], (
        "one for each, no more"
    )
    rows = rank.device_failures
    assert [(row.step, row.looked) for row in rows] == [(4, True), (10, True)]
    assert rows[1].at.endswith(" run_out")
    text = " ".join(told.stdout.split())
    assert "tried to allocate 4.00 GiB on fakedevice:0" in text
    assert "1.00 MiB in 1 storage: activation in train(), train.py" in text, "before the stack unwinds"
    assert (run_folder / "rank_0000" / "fakedevice_oom_000010.pickle").exists()


def test_never_leaves_the_allocator_alone(run_folder: Path, leakscope: Command) -> None:
    told = leakscope("run", "-q", "--snapshot", "never", "--no-lifetimes", "-o", "run", "train.py")
    assert "recording: False []" in told.stdout
    assert not list((run_folder / "rank_0000").glob("*.pickle"))
    (rank,) = read_run(run_folder).ranks
    assert rank.device_blocks == () and rank.steps[-1].counted_bytes == 11 * (2 << 20)
