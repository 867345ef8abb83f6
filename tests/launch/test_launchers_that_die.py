"""Ranks end with a launcher that is killed, and what they recorded is reported."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from leakscope.findings import judge
from leakscope.run.reader import read_run
from leakscope.verdict import Verdict

pytestmark = pytest.mark.process

Write = Callable[..., Path]

LOOP = """
import itertools, os, time
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rank = os.environ.get("RANK", "0")
for number in itertools.count(1):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if number == 50:
        open(f"pid_{rank}", "w").write(f"{os.getpid()} ")
    print("step", number, flush=True)
    time.sleep(0.01)
"""


def kill_the_launcher(folder: Path, script: Path, ranks: int, number: signal.Signals) -> tuple[int, Sequence[int]]:
    """Once all ranks have taken 50 steps; gives its status, and the numbers of the ranks' processes."""
    command = [sys.executable, "-m", "leakscope", "run", "-q"]
    command += ["--ranks", str(ranks), "-o", "run", str(script)]
    with open(folder / "out", "wb") as out:
        launcher = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, start_new_session=True)
    files = [folder / f"pid_{rank}" for rank in range(ranks)]
    until(lambda: all(file.exists() and file.read_text().endswith(" ") for file in files), 60)
    launcher.send_signal(number)
    return launcher.wait(60), [int(file.read_text()) for file in files]


def until(happens: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def is_there(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ranks_end_with_a_launcher_that_is_killed(script: Write, tmp_path: Path) -> None:
    ranks = 2
    status, processes = kill_the_launcher(tmp_path, script(LOOP), ranks, signal.SIGKILL)
    assert status == -signal.SIGKILL
    until(lambda: not any(is_there(process) for process in processes), 10)
    run = read_run(tmp_path / "run")
    assert [(rank.ended.how, rank.ended.status, rank.ended.is_orphan) for rank in run.ranks] == [
        ("killed", 143, True)
    ] * ranks
    assert all(len(rank.steps) >= 50 and abs(rank.ended.steps - len(rank.steps)) <= 5 for rank in run.ranks)
    assert run.torch and run.sources, "written by the ranks in place of the launcher"
    assert judge(run).verdict == Verdict.INCONCLUSIVE


HANDLES = """
import os, signal, sys, time
def handle(*_):
    open("handled", "w").close()
    sys.exit(5)
signal.signal(signal.SIGTERM, handle)
open("pid_0", "w").write(f"{os.getpid()} ")
while True: time.sleep(0.01)
"""


def test_the_scripts_own_handler_runs_first(script: Write, tmp_path: Path) -> None:
    _, (process,) = kill_the_launcher(tmp_path, script("import torch\n" + HANDLES), 1, signal.SIGKILL)
    until(lambda: not is_there(process), 10)
    assert (tmp_path / "handled").exists()
