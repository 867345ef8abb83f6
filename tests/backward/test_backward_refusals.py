"""Invalid inputs are rejected before backward starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.backward import output_edges, stage_backward, stage_backward_input


def made() -> tuple[Tensor, Tensor, nn.Linear]:
    x = torch.randn(3, 4, requires_grad=True)
    layer = nn.Linear(4, 5)
    return x, layer(x), layer


REFUSED: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any], str]] = {
    "missing gradient": (lambda y: [y.sum(), y], lambda y: [None, None], "output 1 "),
    "none for a tuple": (lambda y: (y, None), lambda y: [None, None], "output 0 "),
    "shape": (lambda y: {"a": y}, lambda y: {"a": torch.ones(3)}, "output 'a' "),
    "complex": (lambda y: [y], lambda y: [torch.ones(3, 5) * 1j], "torch.complex64"),
    "length": (lambda y: [y, y], lambda y: [None], "2 parts"),
    "containers": (lambda y: {"a": [y]}, lambda y: {"a": y}, "output 'a' is a list"),
    "edge of wrong shape": (lambda y: output_edges([y]), lambda y: [torch.ones(5)], "output 0 "),
}


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_runs(case: str, split: bool) -> None:
    outputs, grads, message = REFUSED[case]
    x, y, layer = made()
    ran: list[int] = []
    y.register_hook(lambda _: ran.append(1))
    with pytest.raises(RuntimeError, match=message):
        if split:
            stage_backward_input(outputs(y), grads(y), [x], layer.parameters())
        else:
            stage_backward(outputs(y), grads(y), [x])
    assert not ran and x.grad is None and layer.weight.grad is None


def test_an_output_shrunk_through_its_data_is_refused_and_its_edge_accepted() -> None:
    x, y, layer = made()
    y.data = torch.empty(1)
    edges = output_edges([y])
    with pytest.raises(
        RuntimeError, match=r"output 0 has shape .1,. .* output_edges\(outputs\) right after the forward"
    ):
        stage_backward([y], [torch.ones(3, 5)], [x])
    (grad,) = stage_backward(edges, [torch.ones(3, 5)], [x])
    assert torch.equal(grad, torch.ones(3, 5) @ layer.weight)


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("residual", [False, True])
def test_a_stale_graph_is_named(split: bool, residual: bool) -> None:
    x, y, layer = made()
    y = y.square()
    if residual:
        y = y + 1
    y.sum().backward()
    layer.zero_grad()
    x.grad = None
    with pytest.raises(RuntimeError, match="output 1 belongs to a graph that was freed"):
        if split:
            stage_backward_input([x.sum(), y], [None, torch.ones(3, 5)], [x], layer.parameters())
        else:
            stage_backward([x.sum(), y], [None, torch.ones(3, 5)], [x])
    assert x.grad is None and layer.weight.grad is None


def test_boxed_refuses_what_it_cannot_empty() -> None:
    x, y, layer = made()
    with pytest.raises(RuntimeError, match=r"boxed=True takes lists") as caught:
        stage_backward((y,), [torch.ones(3, 5)], [x], boxed=True)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(RuntimeError, match=r"boxed=True takes lists .* output_grads holds output 0 in a tuple"):
        stage_backward_input([y], (torch.ones(3, 5),), [x], layer.parameters(), boxed=True)
