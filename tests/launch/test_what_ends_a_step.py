"""Ranks with different step sources take heap snapshots and end together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.findings import judge
from leakscope.launch import Outcome, launch
from leakscope.options import Options, When
from leakscope.run.model import Rank, Run
from leakscope.run.reader import read_run
from leakscope.run.rows import StepsBy, StepSourceKind

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("launches_copies")]

Write = Callable[..., Path]
BEGIN = """
import torch
from torch import nn
torch.set_num_threads(1)
net, kept = nn.Linear(256, 256), []
"""


def run(folder: Path, script: Path, **plan: object) -> tuple[Outcome, Run]:
    """Launch; how it went, and what was recorded."""
    folder.mkdir()
    plan = {"lifetimes": False, "gc_diff": When.NEVER, "grace": 5.0, **plan}
    return launch(Options.of({"script": str(script), "folder": folder, **plan})), read_run(folder)


def test_an_optimizer_takes_over_from_an_evaluation(script: Write, tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
with torch.no_grad():
    for _ in range(4):
        kept.append(net(torch.ones(256, 256)))
optimizer = torch.optim.Adam(net.parameters())
while True:
    net(torch.ones(256, 256)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    outcome, recorded = run(tmp_path / "run", script(text), steps=8)
    (rank,) = recorded.ranks
    assert outcome.status == 0
    calls, steps = StepsBy(StepSourceKind.CALL, "Linear"), StepsBy(StepSourceKind.OPTIMIZER, "Adam", since=4)
    assert rank.step_sources == (calls, steps)
    assert rank.ended.steps == 4 + 8 and recorded.warmup_of(rank) == 4 + 2
    assert [snapshot.step for snapshot in rank.heap_snapshots][-4:] == [4 + 3, 4 + 5, 4 + 7, 4 + 8]
    assert judge(recorded).verdict == "clean", "what the evaluation kept was there before the training"


PAIR = """
import sys, time, torch, torch.distributed as dist
from datetime import timedelta
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
"""
PIPELINE = """
if rank == 1:
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
while True:
    for microbatch in range(3):
        if rank == 0:
            out = net(torch.ones(4, 64))
            dist.send(out.detach(), dst=1)
            grad = torch.empty(4, 64)
            dist.recv(grad, src=1)
            out.backward(grad)
        else:
            inp = torch.empty(4, 64)
            dist.recv(inp, src=0)
            inp.requires_grad_()
            net(inp).pow(2).sum().backward()
            dist.send(inp.grad, dst=0)
    if rank == 1:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_rank_without_an_optimizer_follows_the_one_that_has_it(script: Write, tmp_path: Path) -> None:
    outcome, recorded = run(tmp_path / "run", script(PAIR + PIPELINE), ranks=2, steps=6)
    follower, owner = recorded.ranks
    assert outcome.status == 0
    assert (owner.ended.steps, owner.step_source) == (6, StepsBy(StepSourceKind.OPTIMIZER, "SGD"))
    assert (follower.ended.steps, follower.step_sources) == (0, ())
    assert {snapshot.occasion for snapshot in follower.heap_snapshots} == {"peer"} and follower.heap_snapshots[
        -1
    ].step == 6


def test_ranks_without_any_optimizer_step_together(script: Write, tmp_path: Path) -> None:
    text = """
while True:
    net(torch.ones(4, 64)).sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad = None
"""
    outcome, recorded = run(tmp_path / "run", script(PAIR + text), ranks=2, steps=6)

    def outcome_of(rank: Rank) -> tuple[object, ...]:
        return rank.ended.how, rank.ended.steps, rank.step_source, [snapshot.step for snapshot in rank.heap_snapshots]

    assert outcome.status == 0
    assert outcome_of(recorded.ranks[0]) == outcome_of(recorded.ranks[1])
    assert outcome_of(recorded.ranks[0]) == ("stopped", 6, StepsBy(StepSourceKind.BACKWARD, ""), [3, 5, 6])
