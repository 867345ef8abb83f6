"""Gradients are computed once, hooks run once, and saved tensors are freed as the input pass runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.backward_stages import ScaledLinear
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from leakscope.backward import (
    droppable_saves,
    output_edges,
    save_boxed,
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
    take_boxed,
)

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


WIDTH = 8
watched: list[StorageWeakRef] = []


@pytest.fixture(autouse=True)
def _no_gc() -> Iterator[None]:
    watched.clear()
    gc.disable()
    yield
    gc.enable()


def watch(tensor: Tensor) -> Tensor:
    watched.append(StorageWeakRef(tensor.untyped_storage()))
    return tensor


class AsksTwice(torch.autograd.Function):
    """Asks for its saved tensor more than once, as a custom Function may."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = watch(x.exp())
        ctx.save_for_backward(result)
        return result * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        assert torch.equal(ctx.saved_tensors[0], ctx.saved_tensors[0])
        return grad * ctx.saved_tensors[0]


class Boxed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = watch(x.exp())
        save_boxed(ctx, result)
        return result * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        saved = take_boxed(ctx)
        result = grad * saved.pop()
        assert watched[-1].expired(), "nothing but the list holds it"
        return result


def two_uses(x: Tensor) -> Tensor:
    doubled = watch(x * 2)
    return (doubled.exp() + doubled.sin() * doubled) * 1


MIDDLES: dict[str, Callable[[Tensor], Tensor]] = {
    "operator with two uses": two_uses,
    "custom Function": AsksTwice.apply,
    "boxed": Boxed.apply,
}


@pytest.mark.parametrize("middle", MIDDLES)
def test_saved_tensors_are_freed_before_the_next_node_runs(middle: str) -> None:
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    x = torch.randn(3, WIDTH, requires_grad=True)
    died: list[bool] = []

    def forward() -> Tensor:
        below = first(x)
        below.register_hook(lambda _: died.extend(one.expired() for one in watched))
        result: Tensor = last(MIDDLES[middle](below).sin())
        return result

    with droppable_saves():
        outputs = [forward()]
    weights = [*first.parameters(), *last.parameters()]
    (grad,), groups = stage_backward_input(output_edges(outputs), [torch.ones(3, WIDTH)], [x], weights)
    assert died == [True]
    stage_backward_weight(weights, groups)
    found = [grad, *(weight.grad for weight in weights)]
    expected = torch.autograd.grad(forward().sum(), [x, *weights])
    assert all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True))


def test_after_a_failure_the_graph_reports_why_it_cannot_run() -> None:
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    x = torch.randn(3, WIDTH, requires_grad=True)
    failing = [True]

    def hook(_: Tensor) -> None:
        if failing:
            raise LookupError("the hook failed")

    with droppable_saves():
        below = first(x)
        below.register_hook(hook)
        middle = AsksTwice.apply(F.gelu(watch(below * 2)))
        outputs = [last(middle)]
    weights = [*first.parameters(), *last.parameters()]
    with pytest.raises(RuntimeError, match="the hook failed"):
        stage_backward_input(output_edges(outputs), [torch.ones(3, WIDTH)], [x], weights)
    failing.clear()
    assert all(one.expired() for one in watched) and x.grad is None
    with pytest.raises(RuntimeError, match=r"of shape \(3, 8\) saved by the stage's forward was released by its input"):
        stage_backward_input(output_edges(outputs), [torch.ones(3, WIDTH)], [x], weights)
    # What the failed pass never reached is as it was: it may be asked for again and again.
    for _ in range(2):
        (grad,) = torch.autograd.grad(below, x, torch.ones(3, WIDTH), retain_graph=True)
    assert grad.shape == x.shape


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
}


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_keeps_no_activation_for_its_gradient(norm: str) -> None:
    layer, first, x = NORMS[norm](), nn.Linear(WIDTH, WIDTH), torch.randn(32, WIDTH, requires_grad=True)
    heard: list[Tensor] = []

    def forward() -> Tensor:
        return layer(watch(first(x))).sin()

    with droppable_saves():
        outputs = [forward()]
    weights = [*first.parameters(), *layer.parameters()]
    for weight in layer.parameters():
        weight.register_post_accumulate_grad_hook(heard.append)
    _, groups = stage_backward_input(outputs, [torch.ones(32, WIDTH)], [x], weights, park_grad=False, boxed=True)
    assert watched[0].expired()
    kept = {grad for group in groups for grads in group["grads"] for grad in grads}
    assert sum(grad.numel() for grad in kept) <= 32 * WIDTH + 2 * WIDTH, "the gradient at the linear layer, and vectors"
    assert all(weight.grad is None for weight in weights) and not heard
    stage_backward_weight(weights, groups)
    assert len(heard) == len(list(layer.parameters()))
    expected = torch.autograd.grad(forward().sum(), weights)
    assert all(torch.equal(weight.grad, other) for weight, other in zip(weights, expected, strict=True))
