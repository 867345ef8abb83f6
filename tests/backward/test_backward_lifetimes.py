"""Activations, outputs and gradients are freed as early as possible without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed.pipelining._backward as torch_backward
from support import backward_stages as stages
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from leakscope.backward import (
    droppable_saves,
    output_edges,
    save_boxed,
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
    take_boxed,
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
        self.model = stages.MLP(0)
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


def test_nothing_is_left_after_both_passes() -> None:
    for saving in (False, True):
        watched = Watched()
        outputs, grads, inputs = watched.run(saving)
        seen = [*watched.refs, ref(outputs[0]), ref(grads[0])]
        (dinput,), groups = stage_backward_input(outputs, grads, inputs, watched.model.parameters(), park_grad=False)
        seen.append(ref(dinput))
        assert inputs[0].grad is None
        stage_backward_weight(watched.model.parameters(), groups)
        del outputs, grads, dinput
        assert alive(seen) == 0


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


def test_edges_keep_the_graph_of_a_custom_function() -> None:
    x = torch.randn(3, dtype=torch.double, requires_grad=True)
    out = stages.BoxedTanh.apply(x)
    edges = output_edges([out])
    del out
    (grad,) = stage_backward(edges, [torch.ones(3, dtype=torch.double)], [x])
    torch.testing.assert_close(grad, 1 - torch.tanh(x.detach()) ** 2)


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


def test_boxed_clears_nested_lists_and_dicts() -> None:
    x = torch.randn(3, requires_grad=True)
    inner, inputs = {"a": x * 2, "b": [x + 1]}, [x]
    grads = {"a": torch.ones(3), "b": [torch.ones(3)]}
    parts = (inner, inner["b"], grads, grads["b"], inputs)
    (grad,) = stage_backward([inner], [grads], inputs, boxed=True)
    assert all(len(part) == 0 for part in parts)
    assert torch.equal(grad, torch.full((3,), 3.0))


def test_a_duplicate_boxed_output_gets_the_sum() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x * 2
    (grad,) = stage_backward([y, y], [torch.ones(3), torch.full((3,), 4.0)], [x], boxed=True)
    assert torch.equal(grad, torch.full((3,), 10.0))


def test_boxed_saves_are_freed_inside_the_backward() -> None:
    freed: list[bool] = []

    class Boxed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            big = x.exp()
            save_boxed(ctx, big)
            ctx.ref = ref(big)
            return big.sum()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            saved = take_boxed(ctx)
            result = grad * saved.pop()
            freed.append(ctx.ref.expired())
            return result

    x = torch.randn(ROWS, requires_grad=True)
    out = Boxed.apply(x)
    node = out.grad_fn
    out.backward(retain_graph=True)
    out.backward()
    assert freed == [False, True]
    with pytest.raises(RuntimeError, match="already taken"):
        take_boxed(node)


def test_a_boxed_output_makes_no_cycle() -> None:
    x = torch.randn(ROWS, requires_grad=True)
    out = stages.BoxedTanh.apply(x)
    seen = ref(out)
    del out
    assert seen.expired()


def test_changed_in_place_after_saving() -> None:
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


def test_a_dropped_stage_says_so() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    layer = nn.Linear(3, 3)
    with droppable_saves():
        out = layer(x).sigmoid().tanh()
    edges = output_edges([out])
    stage_backward_input(edges, [torch.ones(3, 3)], [x], layer.parameters())
    with pytest.raises(RuntimeError, match="released by its input pass"):
        stage_backward_input(edges, [torch.ones(3, 3)], [x], layer.parameters())


def test_repeated_calls_do_not_change_what_was_returned() -> None:
    x, layer = torch.randn(2, 3, requires_grad=True), nn.Linear(3, 3)
    (first,), _ = stage_backward_input([layer(x).sum()], None, [x], layer.parameters())
    kept = first.clone()
    (second,), _ = stage_backward_input([layer(x).sum() * 3], None, [x], layer.parameters())
    assert torch.equal(first, kept)
    assert torch.equal(x.grad, first + second)
    (third,) = stage_backward(layer(x).sum(), None, [x])
    assert torch.equal(first, kept)
    torch.testing.assert_close(third, 5 * kept)
    assert x.grad is None


def test_200_steps_without_gc_are_flat() -> None:
    watched = Watched()
    counts = []
    everything: list[StorageWeakRef] = []
    for step in range(200):
        outputs, grads, inputs = watched.run(saving=step % 2 == 0)
        everything = [one for one in everything if not one.expired()]
        everything += [*watched.refs, ref(grads[0]), ref(inputs[0])]
        if step % 3 == 0:
            dinputs: Any = stage_backward(outputs, grads, inputs)
        else:
            dinputs, groups = stage_backward_input(outputs, grads, inputs, watched.model.parameters(), boxed=True)
            stage_backward_weight(watched.model.parameters(), groups)
        everything.append(ref(dinputs[0]))
        del outputs, grads, inputs, dinputs
        counts.append(alive(everything))
    assert set(counts) == {0}
