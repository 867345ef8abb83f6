"""The peak of an instrumented step equals that of a plain step, although gradients are summed out of place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.lived_steps import measured_peak, watched
from torch import nn

SLACK = 1 << 12


class Adds(torch.autograd.Function):
    """Adds in its backward, to the gradient it is given and to what it has made: memory of its own each time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return (grad + grad.sin()) + grad.cos()


layer = nn.Linear(16, 1024)
given = torch.ones(1024, 16)
kept: list[torch.Tensor] = []


def keeps(grad: torch.Tensor) -> None:
    kept[:] = [grad]


def twice(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum() + (x * 3).sum()


def of_a_function(x: torch.Tensor) -> torch.Tensor:
    return Adds.apply(x.exp()).exp().sum() + x.exp().sum()  # type: ignore[no-any-return]


def through_views(x: torch.Tensor) -> torch.Tensor:
    return (x.view(512, 2048) * 2).sum() + (x.t() * 3).sum() + x[:10].sum()


def kept_by_a_hook(x: torch.Tensor) -> torch.Tensor:
    first, second = x * 2, x * 3
    first.register_hook(keeps)
    return first.exp().sum() + second.exp().sum() + (first * second).sum()


def part_kept_by_a_hook(x: torch.Tensor) -> torch.Tensor:
    first, second = x * 3, x * 4
    for part in (first, second):
        assert part.grad_fn is not None
        part.grad_fn.register_hook(lambda given, _: kept.append(given[0]))
    return first.sum() + second.sum()


@pytest.mark.parametrize("loss", [part_kept_by_a_hook, twice, of_a_function, through_views, kept_by_a_hook])
def test_the_peak_is_that_of_an_unwatched_step(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def step() -> None:
        loss(layer(given)).backward()
        kept.clear()
        layer.zero_grad()

    lived = watched(step)
    assert lived.peak is not None, lived.unjudged
    assert abs(lived.peak.rise - measured_peak(step)) < SLACK
