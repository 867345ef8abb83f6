"""Killed, failing and hung ranks: who waited for whom?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
    import os, sys, time
    import torch, torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, how = dist.get_rank(), sys.argv[1]
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def exchange(step):
        if rank == 0:
            dist.isend(torch.ones(1 << 20), 1).wait()
            return
        if step == 3:
            spoil()
        dist.recv(torch.empty(1 << 20), 0)

    def spoil():
        if how == "kill":
            os.kill(os.getpid(), 9)
        if how == "raise":
            raise ValueError("stage backward failed")
        while True:
            time.sleep(0.1)

    for step in range(1, 6):
        exchange(step)
        net(torch.ones(1, 8)).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("how", "status"), [("kill", 137), ("raise", 1), ("never", 124)])
def test_the_report_says_who_waited_for_whom(
    script: Callable[[str], Path], leakscope: Callable[..., object], tmp_path: Path, how: str, status: int
) -> None:
    path = script(SCRIPT)
    began = time.monotonic()
    done = leakscope("run", "-q", "--ranks", 2, "--hang-timeout", 6, "-o", tmp_path / "run", path, how)
    assert done.returncode == status, done.stdout + done.stderr  # type: ignore[attr-defined]
    assert time.monotonic() - began < 60
    told = " ".join(done.stdout.split())  # type: ignore[attr-defined]
    assert "never received by rank 1: send #3 to rank 1" in told
    assert "recv #2 from rank 0 (step 2, microbatch 0, at train.py:18 exchange), done" in told
    ended = json.loads((tmp_path / "run" / "rank_0001" / "ended.json").read_text())
    stack = "\n".join(ended["stack"])
    if how == "kill":
        assert ended["how"] == "killed"
    else:
        assert "spoil" in stack and ("stage backward failed" in ended["error"] or "stack" in stack.lower() or "hung" in ended["error"])
