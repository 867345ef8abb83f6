"""An allocation that fails on the CPU ends the script as without leakscope, and its holders are reported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.findings import judge
from leakscope.recorder.memory_limits import failure
from leakscope.report.run_text import run_text
from leakscope.run.reader import read_run

Command = Callable[..., "subprocess.CompletedProcess[str]"]

SCRIPT = """
    import traceback
    import torch

    torch.set_num_threads(1)

    def forward(net, step):
        hidden = torch.ones(1 << 20)
        if step == 2:
            torch.empty(1 << 50)
        return net(torch.ones(8, 64)).sum() + hidden[0]

    def main():
        net = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            try:
                forward(net, step).backward()
            except RuntimeError as error:
                print(type(error), error, traceback.format_exc())
                raise
            optimizer.step()

    main()
"""


def test_the_error_reaches_the_script_unchanged_and_is_reported_with_its_holders(
    script: Callable[[str], Path], leakscope: Command, tmp_path: Path
) -> None:
    path = script(SCRIPT)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    recorded = leakscope("run", "-q", "--no-lifetimes", "-o", "run", path)
    assert recorded.returncode == plain.returncode == 1
    assert plain.stdout.count("File ") == 2, plain.stdout
    assert recorded.stdout.startswith(plain.stdout), "type, message and traceback as the script sees them"
    assert plain.stderr in recorded.stderr, "and as python prints them"
    run = read_run(tmp_path / "run")
    (failed,) = run.ranks[0].allocation_failures
    assert (failed.step, failed.at) == (2, "train.py:10 forward")
    assert "hidden in forward()" in run_text(judge(run).out_of_memory)[2]
    (snapshot,) = [snapshot for snapshot in run.ranks[0].heap_snapshots if snapshot.occasion == "memory"]
    objects = [snapshot.heap.object(k) for k in range(len(snapshot.heap))]
    frames = {o.label: o.where for o in objects if o.kind == "frame"}
    assert set(frames) == {"frame of main", "frame of forward"}
    assert all(where.startswith("train.py:") for where in frames.values())
    assert "RuntimeError exception" in {snapshot.heap.object(k).label for k in snapshot.heap.roots.tolist()}
    assert not [o.type for o in objects if o.type.startswith("leakscope")]


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error 12"), 4096),
        (RuntimeError("shape mismatch"), None),
        (ValueError("DefaultCPUAllocator: can't allocate memory"), None),
    ],
)
def test_the_wanted_bytes_are_read(error: Exception, wanted: int | None) -> None:
    found = failure(error)
    assert (found and found["wanted_bytes"]) == wanted


TWO = """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def train(net, optimizer):
        for step in range(4):
            loss = net(torch.ones(8, 64)).sum()
            loss.backward()
            mine = torch.ones(1 << (18 + 2 * dist.get_rank()))
            if step == 2 and dist.get_rank() == 1:
                torch.empty(1 << 50)
            dist.all_reduce(net.weight.grad)
            optimizer.step()
            optimizer.zero_grad()

    net = torch.nn.Linear(64, 64)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
"""


def test_the_peers_of_a_failing_rank_take_a_snapshot_too(
    script: Callable[[str], Path], leakscope: Command, tmp_path: Path
) -> None:
    recorded = leakscope("run", "-q", "-o", "run", "--ranks", "2", "--no-lifetimes", script(TWO))
    assert recorded.returncode == 1
    run = read_run(tmp_path / "run")
    assert run.ranks[0].ended.how in ("killed", "raised"), "by the launcher, or of the peer that is gone"
    lines = run_text(judge(run).out_of_memory)
    place = next(k for k, text in enumerate(lines) if text.startswith("Rank 0: "))
    assert "Rank 1" in lines[0] and "4.00 MiB in 1 storage: mine in train()" in lines[2], "the failing rank first"
    assert "1.00 MiB in 1 storage: mine in train()" in lines[place + 1]
