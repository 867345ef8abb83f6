"""The sizes of what modules are given, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from leakscope.process.patches import Patches
from leakscope.recorder.steps.inputs import StepInputs


class Net(nn.Module):
    """Takes tensors in several ways, and calls another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any, batch: Any = None, *, mask: Any = None) -> torch.Tensor:
        result: torch.Tensor = self.inner(x if isinstance(x, torch.Tensor) else batch["x"])
        return result


@pytest.fixture
def inputs() -> Iterator[StepInputs]:
    listening, patches = StepInputs(), Patches()
    listening.install(patches)
    yield listening
    patches.take_out()
    assert not patches.guard.lost


def test_the_outermost_calls_of_a_step_are_added_up(inputs: StepInputs) -> None:
    net = Net()
    net(torch.ones(2, 4))
    net(torch.ones(3, 4), mask=torch.ones(5))
    assert inputs.taken() == (2 * 4 + 3 * 4 + 5, 2)
    net(torch.ones(2, 4))
    net(None, {"x": torch.ones(2, 4), "ids": [torch.ones(3)]})
    assert inputs.taken() == (2 * 4 + 2 * 4 + 3, 1)
    assert inputs.taken() == (None, 0)


def test_of_later_steps_every_eighth_is_noted(inputs: StepInputs) -> None:
    net, noted = nn.Linear(4, 4), []
    for step in range(1, 42):
        net(torch.ones(2, 4))
        if inputs.taken()[0] is not None:
            noted.append(step)
    assert noted == [*range(1, 18), 25, 33, 41]
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks and not hooks._global_forward_hooks_with_kwargs
