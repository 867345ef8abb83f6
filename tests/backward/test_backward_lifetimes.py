"""Activations, outputs and gradients are freed as early as possible without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.distributed.pipelining._backward as torch_backward
from support import backward_stages as stages
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from leakscope.backward import (
    droppable_saves,
    output_edges,
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)

LAYERS, WIDTH, ROWS = 6, 8, 160  # what is of 4 KiB or less is not handed over late


@pytest.fixture(autouse=True)
def _no_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def ref(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def alive(refs: list[StorageWeakRef]) -> int:
    return sum(not one.expired() for one in refs)


class Watched:
    """A stack of Linear and GELU whose activations are watched by their storages."""

    def __init__(self) -> None:
        self.model = nn.Sequential()
        for _ in range(LAYERS):
            self.model.append(nn.Linear(WIDTH, WIDTH))
            self.model.append(nn.GELU())
        self.refs: list[StorageWeakRef] = []

    def run(self, saving: bool = False) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        self.refs.clear()
        handles = [layer.register_forward_hook(lambda _m, _i, out: self.refs.append(ref(out))) for layer in self.model]
        x = torch.randn(ROWS, WIDTH, requires_grad=True)
        with droppable_saves() if saving else nullcontext():
            out = self.model(x)
        for handle in handles:
            handle.remove()
        return [out], [torch.randn_like(out)], [x]


def weight_pass_area(watched: Watched, ours: bool, saving: bool = False) -> tuple[int, int]:
    """Activations alive after the input pass and after each group, summed; and their number after the input pass."""
    outputs, grads, inputs = watched.run(saving)
    run_input = stage_backward_input if ours else torch_backward.stage_backward_input
    run_weight = stage_backward_weight if ours else torch_backward.stage_backward_weight
    weights = list(watched.model.parameters())
    _, groups = run_input(outputs, grads, inputs, iter(weights))
    del outputs, grads, inputs
    counts = [alive(watched.refs)]
    for group in groups:
        run_weight(iter(weights), [group])
        counts.append(alive(watched.refs))
    assert counts[-1] == 0 and len(counts) == LAYERS + 1
    return sum(counts), counts[0]


def test_activations_alive_over_the_weight_pass() -> None:
    watched = Watched()
    torchs, torch_start = weight_pass_area(watched, ours=False)
    plain, start = weight_pass_area(watched, ours=True)
    dropping, dropped_start = weight_pass_area(watched, ours=True, saving=True)
    assert plain <= 0.6 * torchs
    assert dropping <= 0.45 * torchs
    assert start <= torch_start
    assert dropped_start == LAYERS - 1, "dW needs the input of each layer only, and the first one's is the stage's"


def test_a_sent_output_dies_before_backward() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    expected = torch.autograd.grad(model(x).sum(), x)[0]
    out = model(x)
    sent = ref(out)
    edges = output_edges([out])
    del out
    assert sent.expired()
    (grad,) = stage_backward(edges, [torch.ones(ROWS, WIDTH)], [x])
    assert torch.equal(grad, expected)


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("boxed", [False, True], ids=["plain", "boxed"])
def test_boxed_outputs_and_gradients_die_during_the_call(boxed: bool, split: bool) -> None:
    """Without boxing the caller's lists keep both to the end; with it they are gone when the first layer runs."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.requires_grad_(False)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    hidden = first(x)
    outputs = [second(torch.tanh(hidden)).exp()]
    grads = [torch.randn(ROWS, WIDTH)]
    output_ref, grad_ref = ref(outputs[0]), ref(grads[0])
    at_first_layer: list[bool] = []
    hidden.register_hook(lambda _: at_first_layer.extend([output_ref.expired(), grad_ref.expired()]))
    del hidden
    if split:
        stage_backward_input(outputs, grads, [x], first.parameters(), boxed=boxed)
        # exp saved its output, and the input pass keeps the graph
        assert at_first_layer == [False, boxed]
    else:
        stage_backward(outputs, grads, [x], boxed=boxed)
        assert at_first_layer == [boxed, boxed]
    assert (outputs == [] and grads == []) is boxed
    assert output_ref.expired() is boxed


def test_a_saved_tensor_changed_in_place_is_refused() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    with droppable_saves():
        y = x.exp()
        out = (y * 2).sin()
    y.data.add_(1)  # .data has a version counter of its own: nobody can see this one
    z = y.detach()
    z.add_(1)
    with pytest.raises(RuntimeError, match=r"shape \(3, 3\).*changed in place"):
        stage_backward([out], [torch.ones(3, 3)], [x])
    boxed_in = torch.randn(3, requires_grad=True)
    kept = stages.BoxedTanh.apply(boxed_in)
    kept.detach().mul_(2)
    with pytest.raises(RuntimeError, match=r"saved tensor 0 .* changed in place"):
        stage_backward([kept], [torch.ones(3)], [boxed_in])
