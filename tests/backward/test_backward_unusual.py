"""Backward handles mixed dtypes, jagged outputs, per-sample losses and selective checkpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nested import as_nested_tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from leakscope.backward import (
    droppable_saves,
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


def test_a_loss_for_each_sample_starts_from_ones_where_no_gradients_are_given() -> None:
    stage, x = _stage()
    expected = _grads(stage, x)
    weights = list(stage.parameters())
    (dx,), groups = stage_backward_input((stage(x),), None, [x], weights, park_grad=False)
    stage_backward_weight(weights, groups)
    _equal([dx, *(weight.grad for weight in weights)], expected)


@pytest.mark.parametrize("handed", ["outputs", "edges"])
def test_jagged_outputs(handed: str) -> None:
    layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    y = layer(as_nested_tensor([x[:1], x], layout=torch.jagged))
    grad = torch.ones_like(y)
    expected = torch.autograd.grad([y], [x, *layer.parameters()], [grad], retain_graph=True)
    outputs = output_edges([y]) if handed == "edges" else [y]
    (dx,) = stage_backward(outputs, [grad], [x], boxed=True)
    _equal([dx, *(weight.grad for weight in layer.parameters())], list(expected))


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


@pytest.mark.parametrize("order", [1, -1], ids=["in their order", "the other way round"])
def test_groups_that_cross_each_other_run_one_at_a_time(order: int) -> None:
    stage, x = _stage()
    between = nn.Linear(4, 4)
    expected = torch.autograd.grad(stage(between(stage(x))).sum(), [x, *stage.parameters(), *between.parameters()])
    y = checkpoint(stage, between(checkpoint(stage, x, use_reentrant=False)), use_reentrant=False)
    weights = [*stage.parameters(), *between.parameters()]
    (dx,), groups = stage_backward_input([y], [torch.ones(2, 4)], [x], weights, park_grad=False)
    assert len(groups) > 1
    for group in groups[::order]:
        stage_backward_weight(weights, [group])
    _equal([dx, *(weight.grad for weight in weights)], list(expected))


def test_a_hook_between_two_uses_of_a_weight_hears_the_same_gradient_twice_under_droppable_saves() -> None:
    torch.manual_seed(0)
    shared, layer = nn.Parameter(torch.full((4,), 0.3)), nn.Linear(4, 4)
    x, heard = torch.randn(2, 4, requires_grad=True), list[Tensor]()
    with droppable_saves():
        scale = shared.exp()
        middle = torch.tanh(x * scale)
        middle.register_hook(heard.append)
        y = (layer(middle * torch.sin(x * scale)) * scale).exp() * scale
    weights = [shared, *layer.parameters()]
    _, groups = stage_backward_input([y], [torch.ones(2, 4)], [x], weights, park_grad=False)
    stage_backward_weight(weights, groups)
    first, second = heard
    assert torch.equal(first, second)
    assert first.norm() > 0
