"""The zoo of pipeline stages the backward is compared on, each with its inputs and output gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leakscope.backward import save_boxed, take_boxed

WIDTH = 6


class MLP(nn.Sequential):
    def __init__(self, layers: int = 3) -> None:
        super().__init__(*(layer for _ in range(layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = MLP(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)[None]
        x = x + self.attention(y, y, y, need_weights=False)[0][0]
        return x + self.mlp(x)


class ConvNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv1d(1, 3, 3, padding=1), nn.BatchNorm1d(3), nn.Conv1d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.norm(self.conv(x[:, None])))).squeeze(1)


class TiedLinear(nn.Module):
    """One linear layer used three times, with another in between."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(torch.tanh(self.other(F.gelu(self.tied(torch.sigmoid(self.tied(x)))))))


class TiedScale(nn.Module):
    """A parameter that several operators take directly, so that their gradients meet in one leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(WIDTH), nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.mlp = MLP(1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(x) * self.scale)
        return self.norm(self.mlp(x)) * self.scale * self.scale


class TiedBiases(nn.Module):
    """Two layers share the weight but have their own biases."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.first, self.second = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.weight, self.first)), self.weight, self.second)


class SideBranch(nn.Module):
    """Two outputs, one of which no input reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.free = MLP(1), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.mlp(x), torch.tanh(self.free * 2)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        z = self.one(x) * y
        return {"hidden": z, "more": [self.two(z), (z.sum(), "a label", None)], "plain": torch.ones(3)}


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        y.add_(1).relu_()
        z = torch.zeros(x.shape[0], 2 * WIDTH, dtype=x.dtype)
        z[:, :WIDTH] = y
        z[:, WIDTH:] = self.two(y)
        return z


class Views(nn.Module):
    """Every output is a view; two come from one node with several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = self.one(x).split(WIDTH, dim=1)
        return left, self.two(right).t(), right[1:]


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


class CustomFunctions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = BoxedTanh.apply(ScaledLinear.apply(x, 2.0, self.one))
        return ScaledLinear.apply(x, 0.5, self.two)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(MLP(2) for _ in range(blocks))
        self.reentrant, self.forwards = reentrant, 0

    def run_block(self, block: nn.Module, x: Tensor) -> Tensor:
        self.forwards += 1
        return block(x)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(self.run_block, block, x, use_reentrant=self.reentrant)
        return x


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = MLP(2).float()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.mlp(x.float())


class Frozen(nn.Module):
    """A frozen layer in the middle and a module that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.frozen, self.two = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.frozen(torch.tanh(self.one(x)))))


class TwiceOut(nn.Module):
    """The same output twice, and once more inside another output."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> list[Tensor]:
        y = torch.tanh(self.one(x))
        return [y, y, self.two(y)]


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = MLP(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x).square().mean()


class Modulated(nn.Module):
    """A weight computed from another one, used in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Parameter(torch.randn(WIDTH, 2)), nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.low @ self.high
        return torch.tanh(x @ weight) @ weight


STAGES: dict[str, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "attention": Attention,
    "conv_batchnorm": ConvNorm,
    "tied_linear": TiedLinear,
    "tied_scale": TiedScale,
    "tied_biases": TiedBiases,
    "side_branch": SideBranch,
    "nested": Nested,
    "in_place": InPlace,
    "views": Views,
    "custom_functions": CustomFunctions,
    "checkpoint": lambda: Checkpointed(False),
    "checkpoint_reentrant": lambda: Checkpointed(True),
    "autocast": Autocast,
    "frozen": Frozen,
    "twice_out": TwiceOut,
    "loss": Loss,
    "modulated": Modulated,
}


@dataclass
class Case:
    """A stage, its twin with equal weights, and equal inputs for both."""

    stage: nn.Module
    twin: nn.Module
    inputs: list[Tensor]
    twin_inputs: list[Tensor]


def make_case(name: str, needs_grad: bool = True) -> Case:
    stage = STAGES[name]()
    if name != "autocast":
        stage = stage.double()
    count = 2 if name == "nested" else 1
    inputs = [torch.randn(4, WIDTH, dtype=torch.double, requires_grad=needs_grad) for _ in range(count)]
    return Case(stage, copy.deepcopy(stage), inputs, [x.detach().clone().requires_grad_(needs_grad) for x in inputs])


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


def reference(case: Case, grads: Any) -> None:
    """Plain autograd on the twin."""
    outputs = pairs(case.twin(*case.twin_inputs), grads)
    torch.autograd.backward([one for one, _ in outputs], [grad for _, grad in outputs])
