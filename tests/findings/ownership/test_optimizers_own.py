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
from leakscope.graph.paths import paths_from_roots
from leakscope.heap.snapshot import look
from leakscope.run.model import Ended, Rank, Run, Step

STEPS = 6


class Collecting(torch.optim.LBFGS):
    """An optimizer of the user's own: nothing is known to bound what it keeps."""


def descend(kind: type[torch.optim.LBFGS], floats: int) -> Callable[[], Any]:
    """A step of an optimizer whose parameter has so many elements, as nothing else in the process has."""
    weight = torch.nn.Parameter(torch.zeros(floats))
    optimizer = kind([weight], lr=1e-3, max_iter=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * torch.linspace(0.5, 1.5, floats)).exp().sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def test_a_known_history_is_a_note_and_what_else_an_optimizer_collects_is_a_leak() -> None:
    acts = [descend(torch.optim.LBFGS, 4099), descend(Collecting, 4111)]
    of_groups = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    acts.append(lambda: of_groups.add_param_group({"params": [torch.nn.Parameter(torch.zeros(4127))]}))
    kept: list[Callable[[], Any]] = []

    def pile_up() -> None:
        kept.append(descend(torch.optim.LBFGS, 4129))
        for _ in range(3):
            kept[-1]()

    looks = []
    for step in range(1, STEPS + 1):
        for act in (*acts, pile_up):
            act()
        if step >= STEPS - 2:
            looks.append(look(step, "step"))
    done = tuple(Step(k, 0.01, None, None) for k in range(1, STEPS + 1))
    rank = Rank(0, done, tuple(looks), Ended("finished", 0, STEPS))
    found = judge(Run(("train.py",), (rank,), 1, "cpu", torch.__version__, "0", min_bytes=256)).findings
    sizes = looks[-1].heap.bytes

    def about(floats: int) -> list[Finding]:
        return [f for f in found if any(sizes[s] == 4 * floats for s in f.storages.get(0, ()))]

    (history,), (own,), (groups,) = about(4099), about(4111), about(4127)
    assert [(f.rule, f.severity) for f in (history, own)] == [("step-growth", "note"), ("step-growth", "leak")]
    assert groups.severity == "leak" and groups.cut is not None and ".param_groups" in groups.cut.written
    assert {f.severity for f in about(4129)} == {"leak"}


@pytest.mark.parametrize(
    ("where", "first"), [("<torch/optim/optimizer.py>:538", "module train"), ("train.py:7", "frame wrapper")]
)
def test_a_root_of_the_user_precedes_a_frame_of_a_library(where: str, first: str) -> None:
    """A running frame at this line and, one reference farther, the user's module hold an optimizer."""
    graph = heap_from(
        """frame wrapper -> local self -> object optimizer
        module train -> .trainer -> object trainer
        object trainer -> .optimizer -> object optimizer
        object optimizer -> .state -> tensor a
        tensor a -> storage -> storage a 400"""
    )
    lines = graph.where.copy()
    lines[0] = len(graph.strings)
    graph = replace(graph, strings=(*graph.strings, where), where=lines)
    (storage,) = graph.storages.tolist()
    ways = paths_from_roots(graph)
    assert way_text(graph, ways.start_of(graph, storage), ways.path_to(graph, storage)).startswith(first)
