"""A split backward computes every gradient once and calls every hook with it once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from support.backward_stages import ScaledLinear
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leakscope.backward import stage_backward_input, stage_backward_weight

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


def test_hooks_that_change_gradients_count_once() -> None:
    """The two layers share their weight; what lies between them does not run again in the weight pass."""
    weight, first, second = some(4, 4), some(4), some(4)
    for one in (weight, first, second):
        one.register_hook(lambda grad: grad * 3)
    heard: list[str] = []

    def forward(x: Tensor) -> Tensor:
        heard.clear()
        hidden = torch.tanh(F.linear(torch.tanh(x), weight, first))
        hidden.register_hook(lambda grad: heard.append("hidden") or grad * 5)
        return F.linear(hidden, weight, second)

    split(forward, some(3, 4), [weight, first, second])
    assert heard == ["hidden"]


def test_weights_of_a_stage_whose_input_needs_no_gradient() -> None:
    layer, x = nn.Linear(4, 4).double(), torch.randn(3, 4, dtype=torch.double)
    expected = torch.autograd.grad(layer(x).tanh().sum(), list(layer.parameters()))
    grads, groups = stage_backward_input([layer(x).tanh().sum()], None, [x], layer.parameters())
    assert grads == (None,)
    stage_backward_weight(layer.parameters(), groups)
    for weight, other in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, other)
