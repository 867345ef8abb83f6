"""A failing backward leaves no hooks, gradients or activations behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from leakscope.backward import (
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)


def ref(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


class Failing(torch.autograd.Function):
    error: BaseException = ValueError("the layer failed")

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        big = grad * 2
        assert big is not None
        raise Failing.error


def failing_function(x: Tensor) -> Tensor:
    Failing.error = ValueError("the layer failed")
    return Failing.apply(x)


def interrupted(x: Tensor) -> Tensor:
    Failing.error = KeyboardInterrupt("stop")
    return Failing.apply(x)


def raising_hook(x: Tensor) -> Tensor:
    y = x * 2

    def hook(grad: Tensor) -> Tensor:
        pinned = grad + 1
        raise LookupError("the hook failed", str(pinned.shape))

    y.register_hook(hook)
    return y


def wrong_shape(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad[0])
    return y


CASES: dict[str, tuple[Callable[[Tensor], Tensor], type[BaseException]]] = {
    "custom Function": (failing_function, RuntimeError),
    "hook": (raising_hook, RuntimeError),
    "shape mismatch": (wrong_shape, RuntimeError),
    "KeyboardInterrupt": (interrupted, KeyboardInterrupt),
}


@pytest.mark.parametrize("boxed", [False, True], ids=["plain, no grad before", "boxed, grad before"])
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_after_a_failure(case: str, split: bool, boxed: bool) -> None:
    middle, kind = CASES[case]
    before_layer, after_layer = nn.Linear(4, 4), nn.Linear(4, 4)
    weights = [*before_layer.parameters(), *after_layer.parameters()]
    x = torch.randn(3, 4, requires_grad=True)
    other = torch.randn(3, 4, requires_grad=True)
    if boxed:
        x.grad, other.grad = torch.ones(3, 4), torch.ones(3, 4)
    grad_before, other_before = x.grad, other.grad
    watched: list[StorageWeakRef] = []

    def stage(x: Tensor) -> list[Tensor]:
        one = before_layer(x)
        two = middle(torch.tanh(one))
        three = after_layer(two)
        watched.extend(ref(t) for t in (one, two, three))
        return [three, other * 1]

    gc.disable()
    try:
        outputs = stage(x)
        grads = [torch.randn(3, 4), torch.randn(3, 4)]
        watched.extend(map(ref, grads))
        with pytest.raises(kind) as caught:
            if split:
                stage_backward_input(outputs, grads, [x, other], weights, boxed=boxed)
            else:
                stage_backward(outputs, grads, [x, other], boxed=boxed)
        error = caught.value
        del outputs, grads
        assert x.grad is grad_before and other.grad is other_before
        if boxed:
            assert torch.equal(x.grad, torch.ones(3, 4)) and torch.equal(other.grad, torch.ones(3, 4))
        assert not [one for one in watched if not one.expired()], "the error is alive, no tensor is"
        if kind is RuntimeError:
            assert "Failed to run stage backward" in str(error) and error.__cause__ is not None
    finally:
        gc.enable()


class Carrying(RuntimeError):
    """A user's error with the gradient it is about."""

    def __init__(self, grad: Tensor) -> None:
        super().__init__("nan in the gradient")
        self.grad = grad


@pytest.mark.parametrize("which", ["whole", "input", "weight"])
def test_an_error_that_carries_a_gradient_keeps_nothing_else_alive(which: str) -> None:
    layer = nn.Linear(4, 4)
    x = torch.randn(3, 4, requires_grad=True)
    hidden = layer(x)
    seen: list[StorageWeakRef] = []

    def fail(grad: Tensor) -> None:
        seen.append(ref(grad))
        raise Carrying(grad)

    gc.disable()
    try:
        if which == "weight":
            handle = layer.weight.register_hook(fail)
            _, groups = stage_backward_input([hidden.sin()], [torch.ones(3, 4)], [x], layer.parameters())
            with pytest.raises(Carrying):
                stage_backward_weight(layer.parameters(), groups)
            handle.remove()
        else:
            hidden.register_hook(fail)
            with pytest.raises(RuntimeError, match="nan in the gradient"):
                if which == "whole":
                    stage_backward([hidden.sin()], [torch.ones(3, 4)], [x])
                else:
                    stage_backward_input([hidden.sin()], [torch.ones(3, 4)], [x], layer.parameters())
        del hidden
        assert len(seen) == 1 and seen[0].expired(), "the error closed a cycle"
    finally:
        gc.enable()


def hooks_left() -> list[str]:
    """Functions made inside the backward's functions that something, a grad node say, still holds."""
    return [
        one.__qualname__
        for one in gc.get_objects()
        if type(one) is FunctionType
        and (one.__module__ or "").startswith("leakscope.backward")
        and "<locals>" in one.__qualname__
    ]


def refuse(_: Tensor) -> None:
    raise IndexError("refused")


@pytest.mark.parametrize("fail", [None, "input", "weight"])
@pytest.mark.parametrize("boxed", [False, True])
def test_no_hook_is_left_on_a_living_graph(fail: str | None, boxed: bool) -> None:
    before = hooks_left()  # a dataclass has such functions too
    tied = nn.LayerNorm(4)
    x = torch.randn(3, 4, requires_grad=True)
    hidden = tied(x)
    if fail == "input":
        hidden.register_hook(refuse)
    top = tied(torch.tanh(hidden))
    graph = top * 2
    outputs, grads = [graph * 1], [torch.ones(3, 4)]
    handle = None
    try:
        _, groups = stage_backward_input(outputs, grads, [x], tied.parameters(), boxed=boxed)
        assert hooks_left() == before
        if fail == "weight":
            handle = tied.weight.register_hook(refuse)
        stage_backward_weight(tied.parameters(), groups)
        assert fail is None
    except (RuntimeError, IndexError):
        assert fail is not None
    assert hooks_left() == before and graph.grad_fn is not None
    if handle is not None:
        handle.remove()
