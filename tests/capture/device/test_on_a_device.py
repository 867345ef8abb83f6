"""Scripts on a device: CUDA where there is one, and a fake one in host memory (support/devices/torch_fake)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from support.commands.recorded_runs import Runs
from support.devices.kinds import Kind
from support.pages import PAGES
from support.pages.blocks import blocks_of, commands_of
from support.pages.comparison import agree
from support.pages.walk import patch

from leakscope.findings.oom import DeviceSnapshot, device_snapshots
from leakscope.run.model import Rank
from leakscope.run.reader import read_run
from leakscope.run.rows import Elsewhere

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

TRAIN = """
    import atexit, os, sys
    import torch
    from torch import nn

    def say(*words):
        print(*words, flush=True)

    say("used by import", torch.{name}.is_initialized())
    atexit.register(lambda: say("recording at exit", torch.{name}.is_initialized() and {recording}))
    {before}
    torch.manual_seed(0)
    device = torch.device("{name}", 0)
    net = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    say("recording in use", {recording})
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
    say("peak", torch.{name}.max_memory_allocated(), torch.{name}.max_memory_reserved())
"""
"""256 x 512 floats: 512 KiB a hidden."""


def written(device: Kind, before: str = "", inside: str = "") -> str:
    """The training, for one kind of device."""
    text = TRAIN.replace("{before}", before).replace("{inside}", inside)
    return text.replace("{recording}", device.recording).replace("{name}", device.name)


@pytest.fixture
def train(runs: Runs, device: Kind) -> Callable[..., tuple[subprocess.CompletedProcess[str], Path]]:
    """Runs the training under the command; gives what it said and the run's folder."""

    def run(
        *options: str, before: str = "", inside: str = "", env: Mapping[str, str] | None = None
    ) -> tuple[subprocess.CompletedProcess[str], Path]:
        both = tuple({**device.env, **(env or {})}.items())
        recorded = runs.recorded(written(device, before, inside), *options, env=both)
        return recorded.done, recorded.folder

    return run


Train = Callable[..., tuple["subprocess.CompletedProcess[str]", Path]]


def printed(result: subprocess.CompletedProcess[str], word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in result.stdout.splitlines() if line.startswith(word)]


def recorded(folder: Path) -> Rank:
    (rank,) = read_run(folder, snapshots=True).ranks
    return rank


def test_history_is_on_while_the_device_is_used_and_losses_and_peaks_are_as_without_leakscope(
    train: Train, runs: Runs, device: Kind
) -> None:
    result, folder = train("--snapshot", "always", "--lifetimes")
    states = [printed(result, word) for word in ("used by import", "recording in use", "recording at exit")]
    assert states == [["False"], ["True"], ["False"]]
    (report, *_) = recorded(folder).memory_snapshots
    (seen, *_) = report.devices
    assert seen.history in ("complete", "partial") and seen.events > 100
    assert seen.ghost_blocks == 0, "recording began with the first allocation"
    assert any(entry.site.where.startswith("train.py:") for entry in seen.end_sites)
    plain = runs.plain(written(device), env=tuple(device.env.items()))
    assert printed(result, "loss") == printed(plain, "loss") and len(printed(plain, "loss")) == 12
    assert printed(result, "peak") == printed(plain, "peak")


def test_a_script_that_uses_no_device_gets_no_context_and_may_fork(
    script: Write, leakscope: Command, tmp_path: Path, device: Kind
) -> None:
    script(f"""
        import os, torch
        weight = torch.ones(8, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4):  # no backward: autograd counts the devices then, after which no fork may use one
            weight.grad = torch.ones(8)
            optimizer.step()
        print("used", torch.{device.name}.is_initialized(), flush=True)
        child = os.fork()
        if child == 0:
            print("in the child", torch.ones(2, device="{device.name}").sum().item(), flush=True)
            os._exit(0)
        print("child", os.waitpid(child, 0)[1], flush=True)
    """)
    result = leakscope("run", "-q", "-o", "run", "train.py", timeout=300, env=device.env)
    words = [printed(result, word) for word in ("used", "in the child", "child")]
    assert words == [["False"], ["2.0"], ["0"]], result.stderr


def adds_up(snapshots: Iterable[DeviceSnapshot]) -> bool:
    return all(
        snapshot.held + snapshot.waiting + snapshot.native + snapshot.pending == snapshot.active
        for snapshot in snapshots
    )


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"], ids=["plain segments", "expandable segments"])
def test_every_active_byte_of_a_training_step_is_accounted_for(train: Train, device: Kind, settings: str) -> None:
    if settings and device.name != "cuda":
        pytest.skip("CUDA's allocator alone has expandable segments")
    env = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    result, folder = train("--no-lifetimes", inside="kept.append(hidden.detach())", env=env)
    assert result.returncode == 23, result.stdout + result.stderr
    rank = recorded(folder)
    snapshots = [snapshot for snapshot in device_snapshots(rank) if snapshot.occasion == "step"]
    assert snapshots and adds_up(device_snapshots(rank))
    for snapshot in snapshots:
        row = next(r for r in rank.device_blocks if (r.step, r.occasion) == (snapshot.step, snapshot.occasion))
        parameters = 4 * (512 * 512 * 2 + 512 * 2)
        (heap,) = (
            seen for seen in rank.heap_snapshots if (seen.step, seen.occasion) == (snapshot.step, snapshot.occasion)
        )
        assert heap.counted_on == device.name and heap.counted_bytes is not None, "host memory is not counted"
        assert snapshot.held >= 3 * parameters + snapshot.step * 256 * 512 * 4, (
            "parameters, two moments, and what is kept"
        )
        (counters,) = [r for r in rank.device_steps if r.step == snapshot.step]
        assert [figures.active for figures in counters.devices] == [snapshot.active], "nothing was allocated in between"
        named = [storage for storage in row.storage if storage >= 0]
        assert len(named) == len(set(named)) and all(heap.heap.object(k).kind == "storage" for k in named)
        assert row.elsewhere == Elsewhere(storages=0, bytes=0)
        # the workspaces of cuBLAS, one a thread and up to 32 MiB, are the only memory of this script that no tensor has
        assert snapshot.native <= 256 << 20 and snapshot.outside is not None and snapshot.outside > 0
    reported_findings = json.loads((folder / "findings.json").read_text())["findings"]
    (kept,) = [f for f in reported_findings if f["severity"] == "leak" and f["origin"] == "application"]
    assert any(place.startswith("train.py:") for place in kept["allocated_at"]), (
        "from the allocator's stacks or the watched step"
    )


LATE = """
    import torch

    class Scratch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0
        @staticmethod
        def backward(ctx, grad):
            return grad + torch.zeros(1 << 19, device=grad.device)[0]

    net = torch.nn.Linear(256, 8).to("{name}")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    checkpoint = torch.ones(1 << 18, device="{name}"), torch.ones(1 << 19)

    def train():
        batch = torch.ones(1024, 256, device="{name}")
        small = batch.half().float()
        loss = Scratch.apply(net(small)).pow(2).mean()
        del small
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(10):
        train()
"""


def test_a_batch_on_the_device_is_released_late(
    script: Write, leakscope: Command, tmp_path: Path, device: Kind
) -> None:
    """The peak is in backward, on a thread of autograd's; the variable is one of the thread that waits for it."""
    script(LATE.replace("{name}", device.name))
    result = leakscope("run", "-o", "run", "train.py", timeout=300, env=device.env)
    assert result.returncode == 0, result.stdout + result.stderr
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())["findings"]
    assert "leak" not in {finding["severity"] for finding in findings}
    (idle,) = [finding for finding in findings if finding["rule"] == "idle-memory"]
    assert "`del checkpoint`" in idle["title"]
    (late,) = [finding for finding in findings if finding["rule"] == "late-release"]
    assert "batch in train()" in late["title"]
    assert late["cut"]["frees_bytes"] == 1024 * 256 * 4


LIMIT = "torch.{name}.set_per_process_memory_fraction((512 << 20) / torch.{name}.get_device_properties(0).total_memory)"


def test_memory_that_runs_out_is_recorded_before_the_stack_unwinds(train: Train, device: Kind) -> None:
    inside = """ballast = torch.empty(64 << 20, dtype=torch.uint8, device=device)
        len(kept) < 4 or torch.empty(1 << 30, dtype=torch.uint8, device=device)
        kept.append(1)"""
    result, folder = train("--no-lifetimes", before=LIMIT, inside=inside)
    assert result.returncode == 1 and "OutOfMemoryError" in result.stderr
    rank = recorded(folder)
    assert [snapshot.occasion for snapshot in rank.heap_snapshots if snapshot.occasion in ("oom", "memory")] == ["oom"]
    (row,) = rank.device_failures
    assert row.wanted_bytes == 1 << 30 and row.looked and row.at.startswith("train.py:") and row.at.endswith(" forward")
    assert (folder / "rank_0000" / f"{device.name}_oom_{row.step:06d}.pickle").exists()
    (seen,) = rank.memory_snapshots[0].devices
    assert [failure.requested_bytes for failure in seen.out_of_memory] == [1 << 30]
    assert "ballast in forward()" in result.stdout


def test_the_page_on_the_allocator_shows_what_happens(script: Write, leakscope: Command, device: Kind) -> None:
    if device.name != "cuda":
        pytest.skip("its figures are CUDA's")
    page = blocks_of((PAGES / "rules" / "allocator.md").read_text(encoding="utf-8"))
    for block in page:
        if block.language == "python":
            path = script(block.text, block.title)
        elif block.language == "diff":
            patch(path, block.text)
        for command in commands_of(block.text) if block.language == "text" else ():
            result = leakscope(*command.words.split()[1:], timeout=300, env=device.env).stdout
            assert agree(command.output, result.splitlines()), result
