"""Custom Functions of the stages that the backward is compared on, and what handles their nested outputs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from leakscope.backward import save_boxed, take_boxed


class ScaledLinear(torch.autograd.Function):
    """A custom Function that honours ctx.needs_input_grad, and counts what it computes."""

    computed: ClassVar[list[str]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x @ weight * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            ScaledLinear.computed.append("input")
            grad_x = grad @ weight.t() * ctx.factor
        if ctx.needs_input_grad[2]:
            ScaledLinear.computed.append("weight")
            grad_weight = x.t() @ grad * ctx.factor
        return grad_x, None, grad_weight


class BoxedTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        save_boxed(ctx, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        saved = take_boxed(ctx)
        y = saved.pop()
        return grad * (1 - y * y)


def grads_like(outputs: Any) -> Any:
    """Random gradients in the nesting of the outputs; None where none is needed."""
    if isinstance(outputs, Tensor):
        return torch.randn_like(outputs) if outputs.requires_grad else None
    if isinstance(outputs, dict):
        return {key: grads_like(value) for key, value in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        return type(outputs)(grads_like(value) for value in outputs)
    return None


def clone(grads: Any) -> Any:
    if isinstance(grads, Tensor):
        return grads.clone()
    if isinstance(grads, dict):
        return {key: clone(value) for key, value in grads.items()}
    if isinstance(grads, (list, tuple)):
        return type(grads)(clone(value) for value in grads)
    return grads


def as_lists(values: Any) -> Any:
    """The same nesting with lists in place of tuples, as boxed calls need it."""
    if isinstance(values, dict):
        return {key: as_lists(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [as_lists(value) for value in values]
    return values


def pairs(outputs: Any, grads: Any) -> list[tuple[Tensor, Tensor]]:
    if isinstance(outputs, Tensor):
        return [(outputs, grads)] if outputs.requires_grad else []
    if isinstance(outputs, dict):
        return [pair for key in outputs for pair in pairs(outputs[key], grads[key])]
    if isinstance(outputs, (list, tuple)):
        return [pair for one, grad in zip(outputs, grads, strict=True) for pair in pairs(one, grad)]
    return []
