"""How a run of two ranks ends: real ranks, real kills."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands.preloaded import Copies

from leakscope.launch import Outcome, launch
from leakscope.options import Options
from leakscope.run.model import Rank
from leakscope.run.reader import read_run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("launches_copies")]

Write = Callable[..., Path]

PAIR = """
import os, signal, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    net(torch.ones(4, 64)).sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
def leave_last():
    while not os.path.exists("shared/rank_0000/ended.json"):
        time.sleep(0.05)
    sys.exit(7)
"""


def run(folder: Path, script: Path, **plan: object) -> tuple[Outcome, tuple[Rank, ...]]:
    folder.mkdir(exist_ok=True)
    settings = {"ranks": 2, "gc_diff": "never", **plan}
    outcome = launch(Options(script=str(script), folder=folder, **settings))  # type: ignore[arg-type]
    return outcome, read_run(folder).ranks


def test_a_killed_rank_is_named_and_its_peer_is_not_blamed(
    script: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(
        PAIR + "for i in range(9):\n    if i == 4 and rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n    step()\n"
    )
    outcome, ranks = run(tmp_path / "run", path)
    assert (outcome.status, outcome.failed) == (137, 1)
    assert ranks[1].ended.how == "killed" and ranks[1].ended.status == 137 and ranks[1].ended.steps == 4
    assert ranks[0].ended.how in ("raised", "killed") and ranks[0].ended.status != 0
    assert (
        [snapshot.step for snapshot in ranks[0].heap_snapshots]
        == [3]
        == [snapshot.step for snapshot in ranks[1].heap_snapshots]
    )
    last = ranks[1].final_operation
    assert last is not None and last.direction == "allreduce", "readable after SIGKILL"
    noise = [line for line in capfd.readouterr().err.splitlines() if "elastic" in line or "=====" in line]
    assert not noise, "messages of the launcher go to its log"
    assert "exitcode" in (tmp_path / "run" / "logs" / "launcher.log").read_text()


def test_status_and_log_of_the_failing_rank_are_passed_on(
    script: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(PAIR + "step()\nprint('hello from', rank)\nif rank == 1: sys.exit(3)\nstep()\n")
    outcome, ranks = run(tmp_path / "run", path)
    assert (outcome.status, outcome.failed, outcome.log) == (3, 1, "logs/rank_0001.stderr.log")
    assert ranks[1].ended.how == "exited"
    assert "[rank 1]: hello from 1" in capfd.readouterr().out
    assert (tmp_path / "run" / "logs" / "rank_0001.stdout.log").read_text() == "hello from 1\n"


def test_under_another_launcher_each_rank_records_itself(script: Write, tmp_path: Path, copies: Copies) -> None:
    path = script(PAIR + "for _ in range(4): step()\ndist.barrier()\nif rank: leave_last()\n")
    words = ["--nproc-per-node", "2", "--no-python", "leakscope", "run", "-o", "shared", str(path)]
    done = copies.run(words, tmp_path, dict(os.environ), 300, "torch.distributed.run")
    recorded = read_run(tmp_path / "shared")
    assert done.returncode == 1 and "exitcode  : 7" in done.stderr, "the script's own status"
    assert [(rank.ended.how, rank.ended.status, len(rank.steps)) for rank in recorded.ranks] == [
        ("finished", 0, 4), ("exited", 7, 4),
    ]  # fmt: skip
    assert recorded.expected_ranks == 2
    assert json.loads((tmp_path / "shared" / "run.json").read_text())["ranks"] == 2
