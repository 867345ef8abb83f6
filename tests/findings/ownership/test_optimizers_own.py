"""Optimizer state kept by design is separated from accumulation and from user roots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.heap_text import heap_from, way_text

from leakscope.findings.judge import judge
from leakscope.findings.model import Finding
from leakscope.graph.model import HeapGraph
from leakscope.graph.paths import paths_from_roots
from leakscope.heap.snapshot import look
from leakscope.report.finding_text import advice, title
from leakscope.report.verdict_text import next_text
from leakscope.run.model import Ended, Rank, Run, Step

FLOATS = 4099
"""Elements of a tensor that nothing else in the process has."""


def run_of(act: Callable[[], Any], steps: int = 6) -> Run:
    """So many steps of `act` in this process, looked at three times."""
    looks = []
    for step in range(1, steps + 1):
        act()
        if step >= steps - 2:
            looks.append(look(step, "step"))
    done = tuple(Step(k, 0.01, None, None) for k in range(1, steps + 1))
    return Run(
        ("train.py",),
        (Rank(0, done, tuple(looks), Ended("finished", 0, steps)),),
        1,
        "cpu",
        torch.__version__,
        "0",
        min_bytes=256,
    )


def about(run: Run) -> Finding:
    """The finding about tensors of `FLOATS` elements."""
    heap = run.ranks[0].looks[-1].heap
    (finding,) = [f for f in judge(run).findings if any(heap.bytes[s] == 4 * FLOATS for s in f.storages.get(0, ()))]
    return finding


def descend(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> Callable[[], Any]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * torch.linspace(0.5, 1.5, FLOATS)).exp().sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def lbfgs(weight: torch.Tensor, kind: type[torch.optim.LBFGS] = torch.optim.LBFGS) -> torch.optim.LBFGS:
    return kind([weight], lr=1e-3, max_iter=1)


def test_the_history_of_one_parameter_is_the_optimizers_own() -> None:
    weight = torch.nn.Parameter(torch.zeros(FLOATS))
    optimizer = lbfgs(weight)
    run = run_of(descend(optimizer, weight))
    finding = about(run)
    assert (finding.rule, finding.severity) == ("step-growth", "note")
    assert title(finding).startswith("The LBFGS optimizer state of one parameter grows: optimizer.state")
    assert "history_size" in advice(finding) and judge(run).verdict == "clean"
    assert "too little" not in next_text(run, judge(run))


class Collecting(torch.optim.LBFGS):
    """An optimizer of the user's own: nothing is known to bound what it keeps."""


def test_what_an_optimizer_of_the_users_own_collects_is_a_leak() -> None:
    weight = torch.nn.Parameter(torch.zeros(FLOATS))
    optimizer = lbfgs(weight, Collecting)
    finding = about(run_of(descend(optimizer, weight)))
    assert (finding.rule, finding.severity) == ("step-growth", "leak")


def test_optimizers_that_pile_up_are_a_leak_whatever_each_keeps() -> None:
    kept: list[torch.optim.Optimizer] = []

    def act() -> None:
        weight = torch.nn.Parameter(torch.zeros(FLOATS))
        kept.append(lbfgs(weight))
        for _ in range(3):
            descend(kept[-1], weight)()

    run = run_of(act)
    told = [f for f in judge(run).findings if any(f.storages.get(0, ())) and "kept" in title(f)]
    assert told and {f.severity for f in told} == {"leak"}
    assert all("kept" in advice(f) for f in told), [advice(f) for f in told]


def test_parameters_that_pile_up_in_one_optimizer_are_its_own_matter() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    finding = about(run_of(lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(FLOATS))]})))
    assert finding.severity == "leak" and "add_param_group" in advice(finding)


def held_twice(where: str) -> HeapGraph:
    """A heap whose optimizer a running frame at this line and, one reference farther, the user's module holds."""
    graph = heap_from(
        """frame wrapper -> local self -> object optimizer
        module train -> .trainer -> object trainer
        object trainer -> .optimizer -> object optimizer
        object optimizer -> .state -> tensor a
        tensor a -> storage -> storage a 400"""
    )
    lines = graph.where.copy()
    lines[0] = len(graph.strings)
    return replace(graph, strings=(*graph.strings, where), where=lines)


@pytest.mark.parametrize(
    ("where", "first"),
    [
        ("<torch/optim/optimizer.py>:538", "module train"),
        ("train.py:7", "frame wrapper"),
        ("<<string>>:7", "frame wrapper"),
    ],
)
def test_a_root_of_the_users_is_told_before_a_frame_of_a_library(where: str, first: str) -> None:
    graph = held_twice(where)
    (storage,) = graph.storages.tolist()
    ways = paths_from_roots(graph)
    assert way_text(graph, ways.start_of(graph, storage), ways.path_to(graph, storage)).startswith(first)
