"""A split backward computes every gradient once and calls every hook with it once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.backward_stages import ScaledLinear
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from leakscope.backward import output_edges, stage_backward, stage_backward_input, stage_backward_weight

Forward = Callable[[Tensor], Tensor]


def split(forward: Forward, x: Tensor, weights: list[Tensor], between: Callable[[], None] = lambda: None) -> None:
    """Compare a split backward with plain autograd; `between` is called after the input pass."""
    expected = torch.autograd.grad(forward(x).sum(), [x, *weights])
    ScaledLinear.computed.clear()
    y = forward(x)
    (grad,), groups = stage_backward_input([y], [torch.ones_like(y)], [x], weights, park_grad=False)
    assert all(weight.grad is None for weight in weights)
    between()
    stage_backward_weight(weights, groups)
    for mine, other in zip([grad, *(weight.grad for weight in weights)], expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def test_checkpointed_blocks_are_recomputed_once_per_pass() -> None:
    first, second = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    forwards: list[nn.Module] = []

    def block(layer: nn.Module, x: Tensor) -> Tensor:
        forwards.append(layer)
        return F.gelu(layer(x))

    def forward(x: Tensor) -> Tensor:
        forwards.clear()
        for layer in (first, second):
            x = checkpoint(block, layer, x, use_reentrant=False)
        return x

    counts: list[int] = []
    split(forward, some(3, 4), [*first.parameters(), *second.parameters()], lambda: counts.append(len(forwards)))
    assert (counts, len(forwards)) == ([4], 6)


def test_a_custom_function_computes_each_gradient_once() -> None:
    one, two = some(4, 4), some(4, 4)
    computed: list[list[str]] = []
    split(
        lambda x: ScaledLinear.apply(ScaledLinear.apply(x, 2.0, one), 0.5, two),  # type: ignore[no-untyped-call]
        some(3, 4),
        [one, two],
        lambda: computed.append([*ScaledLinear.computed]),
    )
    assert computed == [["input", "input"]]
    assert ScaledLinear.computed == ["input", "input", "weight", "weight"]


def test_weights_of_a_stage_whose_input_needs_no_gradient() -> None:
    layer, x = nn.Linear(4, 4).double(), torch.randn(3, 4, dtype=torch.double)
    expected = torch.autograd.grad(layer(x).tanh().sum(), list(layer.parameters()))
    grads, groups = stage_backward_input([layer(x).tanh().sum()], None, [x], layer.parameters())
    assert grads == (None,)
    stage_backward_weight(layer.parameters(), groups)
    for weight, other in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, other)


@pytest.mark.parametrize("split_pass", [False, True], ids=["whole", "split"])
def test_a_gradient_of_another_floating_dtype_is_converted(split_pass: bool) -> None:
    stage, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(2, 4, requires_grad=True)
    grad, weights = torch.randn(2, 4).bfloat16(), list(stage.parameters())
    expected = torch.autograd.grad([stage(x)], [x, *weights], [grad.float()])
    if split_pass:
        outputs = output_edges([stage(x)])
        (dx,), groups = stage_backward_input(outputs, [grad], [x], weights, park_grad=False, boxed=True)
        stage_backward_weight(weights, groups)
    else:
        (dx,) = stage_backward([stage(x)], [grad], [x], boxed=True)
    for mine, other in zip([dx, *(weight.grad for weight in weights)], expected, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("alone", [False, True], ids=["together", "one group at a time"])
def test_hooks_of_weights_in_a_selective_checkpoint_count_once(alone: bool) -> None:
    stage, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(2, 4, requires_grad=True)
    weights = list(stage.parameters())
    for weight in weights:
        weight.register_hook(lambda grad: grad * 2)
    expected = torch.autograd.grad(stage(x).sum(), [x, *weights])
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    y = checkpoint(stage, x, use_reentrant=False, context_fn=contexts)
    (dx,), groups = stage_backward_input([y], [torch.ones(2, 4)], [x], weights, park_grad=False)
    for part in [[group] for group in groups] if alone else [groups]:
        stage_backward_weight(weights, part)
    for mine, other in zip([dx, *(weight.grad for weight in weights)], expected, strict=True):
        assert torch.equal(mine, other)
