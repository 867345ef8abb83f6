"""Backward handles mixed dtypes, jagged outputs, per-sample losses and selective checkpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from leakscope.backward import (
    output_edges,
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)


def _stage() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(2, 4, requires_grad=True)


def _grads(stage: nn.Module, x: Tensor, grad: Tensor | None = None) -> list[Tensor]:
    """What plain autograd makes of it."""
    y = stage(x)
    return list(torch.autograd.grad([y], [x, *stage.parameters()], [torch.ones_like(y) if grad is None else grad]))


def _equal(mine: Any, others: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(mine, others, strict=True))


@pytest.mark.parametrize("handed", ["outputs", "edges"])
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_a_gradient_of_another_floating_dtype_is_converted(handed: str, split: bool) -> None:
    stage, x = _stage()
    grad = torch.randn(2, 4).bfloat16()
    expected = _grads(stage, x, grad.float())
    outputs = [stage(x)] if handed == "outputs" else output_edges([stage(x)])
    weights = list(stage.parameters())
    if split:
        (dx,), groups = stage_backward_input(outputs, [grad], [x], weights, park_grad=False, boxed=True)
        stage_backward_weight(weights, groups)
    else:
        (dx,) = stage_backward(outputs, [grad], [x], boxed=True)
    _equal([dx, *(weight.grad for weight in weights)], expected)


@pytest.mark.parametrize("alone", [False, True], ids=["together", "one group at a time"])
def test_a_selective_checkpoint_is_recomputed_once_and_hooks_of_weights_count_once(alone: bool) -> None:
    def scaled(stage: nn.Module) -> None:
        for weight in stage.parameters():
            weight.register_hook(lambda grad: grad * 2)

    stage, x = _stage()
    scaled(stage)
    expected = _grads(stage, x)
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    y = checkpoint(stage, x, use_reentrant=False, context_fn=contexts)
    weights = list(stage.parameters())
    (dx,), groups = stage_backward_input([y], [torch.ones(2, 4)], [x], weights, park_grad=False)
    assert all(weight.grad is None for weight in weights)
    for part in [[group] for group in groups] if alone else [groups]:
        stage_backward_weight(weights, part)
    _equal([dx, *(weight.grad for weight in weights)], expected)
