"""Saved tensors are freed as the input pass runs, and gradients equal those of plain autograd."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from leakscope.backward import (
    droppable_saves,
    output_edges,
    save_boxed,
    stage_backward_input,
    stage_backward_weight,
    take_boxed,
)

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
