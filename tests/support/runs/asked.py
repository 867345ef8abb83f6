"""A job that stops at a step until it is told to go on, so that somebody can ask it meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TRAINING = """
import os, sys
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
net = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
kept, losses, more = [], [], 1
while more:
    loss = net(torch.ones(4, 256)).square().sum()
    kept.append(torch.ones(50_000))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    more = torch.tensor(0 if len(losses) > 30 and os.path.exists("enough") else 1)
    if ranks > 1:
        torch.distributed.all_reduce(more, torch.distributed.ReduceOp.MIN)
    if len(losses) == 20:
        with open(f"at_20_{rank}", "w") as begun:  # a pipe: who reads knows that this is there
            begun.write(str(os.getpid()))
        with open(f"go_on_{rank}") as told:
            told.read()
print("losses", losses[:30])
sys.exit(3)
"""


@contextmanager
def job(folder: Path, script: Path, ranks: int = 1) -> Iterator[subprocess.Popen[str]]:
    """The script under `leakscope run`, which is ended if it has not come to its end; beyond the first looks it has no
    budget for any.
    """
    for rank in range(ranks):
        os.mkfifo(folder / f"at_20_{rank}")
        os.mkfifo(folder / f"go_on_{rank}")
    words = ["-m", "leakscope", "run", "-q", "--budget", "0", "-n", str(ranks), "-o", "run", script.name]
    with open(folder / "told", "w") as reported:
        started = subprocess.Popen([sys.executable, *words], cwd=folder, stdout=reported, stderr=reported, text=True)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
            started.wait(30)


def at_step_20(folder: Path, rank: int = 0) -> int:
    """Wait until the rank is there; gives the number of its process."""
    return int((folder / f"at_20_{rank}").read_text())


def release_job(folder: Path, rank: int = 0) -> None:
    (folder / f"go_on_{rank}").write_text("")


def until(happens: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := happens()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return answer


def losses(folder: Path) -> str:
    return next(line for line in (folder / "told").read_text().splitlines() if "losses" in line)
