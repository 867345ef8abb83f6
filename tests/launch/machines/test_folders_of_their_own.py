"""Jobs with a run folder on each machine are judged as one run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leakscope.launch.elastic import loopback_store

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SCRIPT = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    outputs = []
    for _ in range(100):
        optimizer.zero_grad()
        output = model(torch.randn(256, 256))
        output.square().mean().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        if dist.get_rank() == 1:
            outputs.append(output.detach())
"""
STEPS = ("--steps", "6")


def a_port() -> int:
    """One that is free; the store that had it is gone."""
    return loopback_store()[1]


def fingerprints(folder: Path) -> list[tuple[str, list[int]]]:
    told = json.loads((folder / "findings.json").read_text())
    assert told["run"]["ranks"] == 2 and set(told["run"]["ended"]) == {"0", "1"}
    return [(finding["fingerprint"], finding["ranks"]) for finding in told["findings"]]


def side_by_side(commands: Sequence[Sequence[object]], folder: Path) -> list[subprocess.CompletedProcess[str]]:
    def run(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, *map(str, command)]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)

    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(run, commands))


def test_machines_with_folders_of_their_own_are_judged_together(
    script: Callable[[str], Path], leakscope: Command, tmp_path: Path
) -> None:
    path = script(SCRIPT)
    together = leakscope("run", "-q", *STEPS, "--ranks", 2, "-o", "together", path)
    assert together.returncode == 23, together.stderr
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", 1, "--rdzv-backend", "c10d", "--no-python")
    meet = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{a_port()}")
    commands: list[tuple[object, ...]] = []
    for node in (0, 1):
        ours = (sys.executable, "-m", "leakscope", "run", *STEPS, "-o", f"node{node}")
        commands.append((*torchrun, *meet, "--node-rank", node, *ours, path))
    for node, done in enumerate(side_by_side(commands, tmp_path)):
        assert done.returncode in (0, 23), done.stderr
        assert "left no word" not in done.stdout + done.stderr and "Failed" not in done.stdout
        assert len(list((tmp_path / f"node{node}").glob("rank_*"))) == 1
    merged = leakscope("merge", "node0", "node1", "-o", "merged")
    assert merged.returncode == 23, merged.stderr
    assert "Cut `outputs`" in merged.stdout and "rank 0 stopped by leakscope" in merged.stdout
    assert fingerprints(tmp_path / "merged") == fingerprints(tmp_path / "together")
    assert [ranks for _, ranks in fingerprints(tmp_path / "together")] == [[1]]
