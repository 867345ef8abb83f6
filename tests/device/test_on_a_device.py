"""On a real CUDA device: recorded, joined, let alone, out of memory, and what all of it costs.

Each runs a script of its own under the command, as nothing that touches the device may stay in the tests' process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from leakscope.findings.device_memory import DeviceLook, device_looks
from leakscope.record import Rank, read_run

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

TRAIN = """
    import atexit, os, sys
    import torch
    from torch import nn

    def say(*words):
        print(*words, flush=True)

    say("used by import", torch.cuda.is_initialized())
    atexit.register(lambda: say("recording at exit", torch.cuda.is_initialized() and torch._C._cuda_isHistoryEnabled()))
    {before}
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    net = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    say("recording in use", torch._C._cuda_isHistoryEnabled())
    kept = []

    def forward(batch):
        hidden = net(batch)
        {inside}
        return hidden.square().mean()

    for step in range(12):
        loss = forward(torch.randn(256, 512, device=device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say("loss", loss.item().hex())
    {after}
    say("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""
"""256 x 512 floats: 512 KiB a hidden."""


@pytest.fixture
def train(
    script: Write, leakscope: Command, tmp_path: Path
) -> Callable[..., tuple[subprocess.CompletedProcess[str], Path]]:
    """Runs the training under the command; gives what it said and the run's folder."""

    def run(
        *options: str,
        before: str = "",
        inside: str = "",
        after: str = "",
        env: Mapping[str, str] | None = None,
        name: str = "run",
    ) -> tuple[subprocess.CompletedProcess[str], Path]:
        script(TRAIN.format(before=before, inside=inside, after=after))
        return leakscope("run", *options, "-o", name, "train.py", timeout=300, env=dict(env or {})), tmp_path / name

    return run


Train = Callable[..., tuple["subprocess.CompletedProcess[str]", Path]]


def said(told: subprocess.CompletedProcess[str], word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in told.stdout.splitlines() if line.startswith(word)]


def recorded(folder: Path) -> Rank:
    (rank,) = read_run(folder, snapshots=True).ranks
    return rank


def test_history_is_on_while_the_script_uses_the_device_and_off_afterwards(train: Train) -> None:
    told, folder = train("--snapshot", "always")
    assert said(told, "used by import") == ["False"]
    assert said(told, "recording in use") == ["True"]
    assert said(told, "recording at exit") == ["False"]
    rank = recorded(folder)
    (report, *_) = rank.snapshots
    (device, *_) = report.devices
    assert device.history in ("complete", "partial") and device.events > 100
    assert device.ghost_blocks == 0, "recording began with the first allocation"
    assert any(entry.site.where.startswith("train.py:") for entry in device.end_sites)


def test_a_script_that_uses_no_device_gets_no_context_and_may_fork(
    script: Write, leakscope: Command, tmp_path: Path
) -> None:
    path = script("""
        import os, torch
        net = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            net(torch.ones(8, 8)).sum().backward()
            optimizer.step()
        print("used", torch.cuda.is_initialized(), flush=True)
        child = os.fork()
        if child == 0:
            print("in the child", torch.ones(2, device="cuda").sum().item(), flush=True)
            os._exit(0)
        print("child", os.waitpid(child, 0)[1], flush=True)
    """)
    told = leakscope("run", "-q", "-o", "run", "train.py", timeout=300)
    plain = subprocess.run(
        [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    words = ("used", "in the child", "child")
    assert (
        [said(told, word) for word in words] == [said(plain, word) for word in words] == [["False"], ["2.0"], ["0"]]
    ), told.stderr


@pytest.mark.parametrize("when", ["before the first use", "afterwards"])
def test_a_script_that_records_keeps_its_history_as_without_leakscope(train: Train, when: str) -> None:
    records = "torch.cuda.memory._record_memory_history(max_entries=50_000)"
    after = """trace = torch.cuda.memory._snapshot()["device_traces"][0]
    say("events", len(trace), sum(event["action"] == "snapshot" for event in trace))"""
    code = {"before": records} if when.startswith("before") else {"inside": f"kept or kept.append({records})"}
    told, folder = train("--snapshot", "always", **code, after=after)
    assert said(told, "recording at exit") == ["True"], told.stderr
    (events,) = said(told, "events")
    assert int(events.split()[0]) > 100 and events.split()[1] == "0", "leakscope has taken none in it"
    rank = recorded(folder)
    assert any("records memory history itself" in note for note in rank.notes)
    joined = [row["step"] for row in rank.extras.get("device_blocks", ())]
    assert joined == []


def adds_up(looks: tuple[DeviceLook, ...]) -> bool:
    return all(look.held + look.waiting + look.native + look.pending == look.active for look in looks)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"], ids=["plain segments", "expandable segments"])
def test_every_active_byte_of_a_training_step_is_accounted_for(train: Train, settings: str) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    told, folder = train("--no-lifetimes", inside="kept.append(hidden.detach())", env=env)
    assert told.returncode == 23, told.stdout + told.stderr
    rank = recorded(folder)
    looks = [look for look in device_looks(rank) if look.occasion == "step"]
    assert looks and adds_up(device_looks(rank))
    for look in looks:
        heap = next(seen.heap for seen in rank.looks if (seen.step, seen.occasion) == (look.step, look.occasion))
        row = next(r for r in rank.extras["device_blocks"] if (r["step"], r["occasion"]) == (look.step, look.occasion))
        parameters = 4 * (512 * 512 * 2 + 512 * 2)
        assert look.held >= 3 * parameters + look.step * 256 * 512 * 4, "parameters, two moments, and what is kept"
        (counters,) = [r for r in rank.extras["device"] if r["step"] == look.step]
        assert [figures["active"] for figures in counters["devices"]] == [look.active], (
            "nothing was allocated in between"
        )
        named = [storage for storage in row["storage"] if storage >= 0]
        assert len(named) == len(set(named)) and all(heap.object(k).kind == "storage" for k in named)
        assert row["elsewhere"] == {"storages": 0, "bytes": 0}
        # the workspaces of cuBLAS, one a thread and up to 32 MiB, are the only memory of this script that no tensor has
        assert look.native <= 256 << 20 and look.outside is not None and look.outside > 0
    told_findings = json.loads((folder / "findings.json").read_text())["findings"]
    (kept,) = [f for f in told_findings if f["severity"] == "leak" and f["origin"] == "application"]
    assert any(place.startswith("train.py:") for place in kept["made_at"]), (
        "from the allocator's stacks or the watched step"
    )


@pytest.mark.parametrize("watched", ["--lifetimes", "--no-lifetimes"])
def test_losses_and_peaks_are_what_they_are_without_leakscope(train: Train, tmp_path: Path, watched: str) -> None:
    told, _ = train("--snapshot", "always", watched)
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    assert said(told, "loss") == said(plain, "loss") and len(said(plain, "loss")) == 12
    assert said(told, "peak") == said(plain, "peak")


LIMIT = "torch.cuda.set_per_process_memory_fraction((512 << 20) / torch.cuda.get_device_properties(0).total_memory)"


def test_memory_that_runs_out_is_recorded_before_the_stack_unwinds(train: Train) -> None:
    inside = """ballast = torch.empty(64 << 20, dtype=torch.uint8, device=device)
        len(kept) < 4 or torch.empty(1 << 30, dtype=torch.uint8, device=device)
        kept.append(1)"""
    told, folder = train("--no-lifetimes", before=LIMIT, inside=inside)
    assert told.returncode == 1 and "OutOfMemoryError" in told.stderr
    rank = recorded(folder)
    assert [look.occasion for look in rank.looks if look.occasion in ("oom", "memory")] == ["oom"]
    (row,) = rank.extras["device_out_of_memory"]
    assert (
        row["wanted_bytes"] == 1 << 30
        and row["looked"]
        and row["at"].startswith("train.py:")
        and row["at"].endswith(" forward")
    )
    assert (folder / "rank_0000" / f"cuda_oom_{row['step']:06d}.pickle").exists()
    text = " ".join(told.stdout.split())
    assert "64.00 MiB in 1 storage: ballast in forward(), train.py" in text
    (device,) = rank.snapshots[0].devices
    assert [failure.requested_bytes for failure in device.out_of_memory] == [1 << 30]


def test_memory_that_runs_out_in_backward_is_recorded_on_autograds_thread(train: Train) -> None:
    before = (
        LIMIT
        + """
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()
        @staticmethod
        def backward(ctx, grad):
            return grad + torch.empty(1 << 30, dtype=torch.uint8, device=grad.device)[0]
    """
    )
    told, folder = train("--no-lifetimes", before=before, inside="hidden = Greedy.apply(hidden)")
    assert told.returncode == 1 and "OutOfMemoryError" in told.stderr, told.stderr
    (row,) = recorded(folder).extras["device_out_of_memory"]
    assert row["looked"] and row["at"].startswith("train.py:") and row["at"].endswith(" backward")


def test_a_script_that_halves_its_batch_is_no_failure(train: Train) -> None:
    inside = """size = 1 << 30
        while size > 1 << 20:
            try:
                torch.empty(size, dtype=torch.uint8, device=device)
                break
            except torch.OutOfMemoryError:
                size //= 2"""
    told, folder = train("--no-lifetimes", before=LIMIT, inside=inside)
    assert told.returncode == 0, told.stdout + told.stderr
    notes = [f for f in json.loads((folder / "findings.json").read_text())["findings"] if f["rule"] == "allocator"]
    assert any("the script went on" in note["title"] and note["severity"] == "note" for note in notes)
    assert "Memory   " not in told.stdout


def test_an_allocator_without_history_is_a_note(train: Train) -> None:
    told, folder = train(
        "--no-lifetimes",
        env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        before="torch._C._cuda_isHistoryEnabled = lambda: False",
    )
    assert told.returncode == 0, told.stderr
    assert any("memory on the device is not recorded" in note for note in recorded(folder).notes)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device here")
def test_two_devices_of_one_process_are_told_apart(train: Train) -> None:
    told, folder = train("--no-lifetimes", inside="kept.append(torch.ones(1 << 18, device='cuda:1'))")
    looks = device_looks(recorded(folder))
    assert told.returncode == 23 and {look.device for look in looks} == {0, 1} and adds_up(looks)


def test_a_step_costs_little(tmp_path: Path) -> None:
    code = f"""if True:
        import statistics, time
        from pathlib import Path
        import torch
        from leakscope.capture.device_memory import DeviceMemory
        from leakscope.capture.installed import Installed
        from leakscope.record import RankFolder

        memory, installed = DeviceMemory(RankFolder(Path({str(tmp_path)!r}), 0), "auto", 0.02), Installed()
        memory.attach(installed)
        alive = [torch.ones(1000, device="cuda") for _ in range(5000)]
        began, spent = time.perf_counter(), []
        for step in range(1, 201):
            alive[step] = torch.ones(1000, device="cuda") + 1
            torch.cuda.synchronize()
            now = time.perf_counter()
            memory.step(step, now - began)
            spent.append(time.perf_counter() - now)
            time.sleep(0.005)
        print(statistics.median(spent), sum(spent) / (time.perf_counter() - began))
        installed.take_out()
    """
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True, env={**os.environ}
    )
    median, share = map(float, told.stdout.split())
    assert median < 0.001 and share < 0.1, told.stdout
