"""Whole and split backwards give the gradients of plain autograd, with and without boxing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import backward_stages as stages
from torch import Tensor, nn

from leakscope.backward import (
    droppable_saves,
    output_edges,
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)

TOLERANCE = 1e-12


def close(mine: Tensor | None, other: Tensor | None) -> None:
    assert (mine is None) == (other is None)
    if mine is not None and other is not None:
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=TOLERANCE, atol=TOLERANCE)


def compare(case: stages.Case, input_grads: Any) -> None:
    for mine, twin in zip(input_grads, case.twin_inputs, strict=True):
        close(mine, twin.grad)
    for (name, mine), twin in zip(case.stage.named_parameters(), case.twin.parameters(), strict=True):
        assert (mine.grad is None) == (twin.grad is None), name
        close(mine.grad, twin.grad)


def hand_over(case: stages.Case, how: str, saving: bool = False) -> tuple[Any, Any]:
    with droppable_saves() if saving else nullcontext():
        outputs = case.stage(*case.inputs)
    grads = stages.grads_like(outputs)
    stages.reference(case, stages.clone(grads))
    for one in case.stage.modules():
        if isinstance(one, stages.Checkpointed):
            one.forwards = 0
    if how == "boxed":
        return stages.as_lists([outputs]), stages.as_lists([grads])
    return (output_edges(outputs) if how == "edges" else outputs), grads


@pytest.mark.parametrize("how", ["outputs", "edges", "boxed"])
@pytest.mark.parametrize("name", stages.STAGES)
def test_whole_backward(name: str, how: str) -> None:
    case = stages.make_case(name)
    outputs, grads = hand_over(case, how)
    compare(case, stage_backward(outputs, grads, case.inputs[:], boxed=how == "boxed"))
    assert all(x.grad is None for x in case.inputs)


@pytest.mark.parametrize("saving", [False, True], ids=["plain", "droppable"])
@pytest.mark.parametrize("how", ["outputs", "edges", "boxed"])
@pytest.mark.parametrize("name", stages.STAGES)
def test_split_backward(name: str, how: str, saving: bool) -> None:
    case = stages.make_case(name)
    outputs, grads = hand_over(case, how, saving)
    boxed = how == "boxed"
    dinputs, groups = stage_backward_input(outputs, grads, case.inputs[:], case.stage.parameters(), boxed=boxed)
    if name != "checkpoint_reentrant":
        assert all(weight.grad is None for weight in case.stage.parameters())
    assert all(x.grad is dinput for x, dinput in zip(case.inputs, dinputs, strict=True))
    del outputs, grads
    stage_backward_weight(case.stage.parameters(), groups, boxed=boxed)
    compare(case, dinputs)
    assert not boxed or groups == []


@pytest.mark.parametrize("how", ["outputs", "edges", "boxed"])
@pytest.mark.parametrize("name", [name for name in stages.STAGES if name != "checkpoint_reentrant"])
def test_weights_of_a_stage_whose_input_needs_no_gradient(name: str, how: str) -> None:
    case = stages.make_case(name, needs_grad=False)
    outputs, grads = hand_over(case, how)
    boxed = how == "boxed"
    dinputs, groups = stage_backward_input(outputs, grads, case.inputs[:], case.stage.parameters(), boxed=boxed)
    assert all(weight.grad is None for weight in case.stage.parameters())
    stage_backward_weight(case.stage.parameters(), groups)
    compare(case, dinputs)


@pytest.mark.parametrize("saving", [False, True], ids=["plain", "droppable"])
def test_checkpointed_blocks_are_recomputed_once_per_pass(saving: bool) -> None:
    case = stages.make_case("checkpoint")
    stage = case.stage
    outputs, grads = hand_over(case, "outputs", saving)
    dinputs, groups = stage_backward_input([outputs], [grads], case.inputs, stage.parameters())
    assert stage.forwards == 2
    stage_backward_weight(stage.parameters(), groups)
    assert stage.forwards == 4
    compare(case, dinputs)


def test_a_custom_function_computes_each_gradient_once() -> None:
    case = stages.make_case("custom_functions")
    outputs, grads = hand_over(case, "outputs")
    stages.ScaledLinear.computed.clear()
    node = outputs.grad_fn
    dinputs, groups = stage_backward_input([outputs], [grads], case.inputs, case.stage.parameters())
    assert stages.ScaledLinear.computed == ["input", "input"]
    assert node.needs_input_grad == (True, False, True)
    stage_backward_weight(case.stage.parameters(), groups)
    assert stages.ScaledLinear.computed == ["input", "input", "weight", "weight"]
    assert node.needs_input_grad == (True, False, True)
    compare(case, dinputs)


def test_tied_layers_do_not_run_the_input_path_again() -> None:
    case = stages.make_case("tied_biases")
    outputs, grads = hand_over(case, "outputs")
    between: list[str] = []
    handle = outputs.grad_fn.next_functions[1][0].register_hook(lambda *_: between.append("tanh"))
    dinputs, groups = stage_backward_input([outputs], [grads], case.inputs, case.stage.parameters())
    assert [len(group["intermediates"]) for group in groups] == [2]
    assert between == ["tanh"]
    stage_backward_weight(case.stage.parameters(), groups)
    assert between == ["tanh"], "the layers between the two uses ran once"
    handle.remove()
    compare(case, dinputs)


def test_hooks_that_change_gradients_count_once() -> None:
    case = stages.make_case("tied_biases")
    for model in (case.stage, case.twin):
        for weight in model.parameters():
            weight.register_hook(lambda grad: grad * 3)
    seen: list[Tensor] = []
    for x, model in ((case.inputs[0], case.stage), (case.twin_inputs[0], case.twin)):
        hidden = torch.tanh(x)
        hidden.register_hook(lambda grad: grad * 5)
        out = model(hidden)
        out.register_hook(lambda grad: grad * 7)
        if model is case.stage:
            dinputs, groups = stage_backward_input([out], [torch.ones_like(out)], [x], model.parameters())
            stage_backward_weight(model.parameters(), groups)
            seen += dinputs
        else:
            out.backward(torch.ones_like(out))
    compare(case, seen)


def test_hooks_on_what_is_computed_from_a_shared_weight_count_once() -> None:
    weight = torch.randn(3, 3, dtype=torch.double, requires_grad=True)
    x = torch.randn(2, 3, dtype=torch.double, requires_grad=True)

    def stage(x: Tensor) -> Tensor:
        for factor in (2.0, 3.0):
            turned = weight.t()
            turned.register_hook(lambda grad, factor=factor: grad * factor)
            x = torch.tanh(x @ turned)
        return x

    expected = torch.autograd.grad(stage(x).sum(), weight)[0]
    _, groups = stage_backward_input([stage(x).sum()], None, [x], [weight])
    assert [(len(group["intermediates"]), group["clamped"]) for group in groups] == [(2, False)]
    stage_backward_weight([weight], groups)
    close(weight.grad, expected)


def test_post_accumulate_hooks_fire_in_the_weight_pass() -> None:
    case = stages.make_case("mlp")
    fired: list[int] = []
    for index, weight in enumerate(case.stage.parameters()):
        weight.register_post_accumulate_grad_hook(lambda _, index=index: fired.append(index))
    outputs, grads = hand_over(case, "outputs")
    dinputs, groups = stage_backward_input([outputs], [grads], case.inputs, case.stage.parameters())
    assert fired == []
    stage_backward_weight(case.stage.parameters(), groups)
    assert sorted(fired) == list(range(6)) and fired[0] >= 4 and fired[-1] <= 1, "last layer first"
    compare(case, dinputs)


def test_an_input_that_is_no_leaf() -> None:
    layer = nn.Linear(3, 3).double()
    below = torch.randn(2, 3, dtype=torch.double, requires_grad=True)
    x = below * 2
    expected = torch.autograd.grad(layer(x).sum(), [x, layer.weight, below])
    x = below * 2
    (grad,) = stage_backward(layer(x).sum(), None, [x])
    close(grad, expected[0])
    close(below.grad, expected[2])
    x = below.detach().requires_grad_() * 2
    (dx,), groups = stage_backward_input([layer(x).sum()], None, [x], layer.parameters(), park_grad=False)
    layer.zero_grad()
    stage_backward_weight(layer.parameters(), groups)
    close(dx, expected[0])
    close(layer.weight.grad, expected[1])


def test_an_input_listed_twice_has_its_gradient_once() -> None:
    x = torch.randn(3, requires_grad=True)
    assert [grad is None for grad in stage_backward((x * x).sum(), None, [x, x])] == [False, True]
    dinputs, _ = stage_backward_input([(x * x).sum()], None, [x, x], [])
    assert [grad is None for grad in dinputs] == [False, True]
    close(x.grad, 2 * x.detach())


@st.composite
def programs(draw: Any) -> list[tuple[str, int, int, int]]:
    """A straight-line program over growing lists of values and weights."""
    count = draw(st.integers(1, 8))
    names = st.sampled_from(["linear", "mul", "add", "tanh", "relu_", "split", "norm", "custom", "weight_only"])
    return [
        (draw(names), draw(st.integers(0, 50)), draw(st.integers(0, 50)), draw(st.integers(0, 3))) for _ in range(count)
    ]


def execute(program: list[tuple[str, int, int, int]], x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    values = [x]
    for name, left, right, number in program:
        a, b, weight = values[left % len(values)], values[right % len(values)], weights[number]
        if name == "linear":
            values.append(a @ weight)
        elif name == "mul":
            values.append(a * b * weight[0])
        elif name == "add":
            values.append(a + b)
        elif name == "tanh":
            values.append(torch.tanh(a))
        elif name == "relu_":
            values.append((a + weight[1]).relu_())
        elif name == "split":
            first, second = a.chunk(2, dim=1)
            values.append(torch.cat([second, first], dim=1))
        elif name == "norm":
            values.append(torch.nn.functional.layer_norm(a, a.shape[1:], weight[2]))
        elif name == "custom":
            values.append(stages.ScaledLinear.apply(a, 0.5, weight))
        else:
            values.append((torch.tanh(weight) @ weight)[: x.shape[0]])
    return [value for value in values[1:][-3:] if value.requires_grad]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 1000))
def test_random_graphs(
    program: list[tuple[str, int, int, int]], needs_grad: bool, saving: bool, boxed: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(4, 4, generator=generator, dtype=torch.double, requires_grad=True) for _ in range(4)]
    x = torch.randn(3, 4, generator=generator, dtype=torch.double, requires_grad=needs_grad)
    outputs = execute(program, x, weights)
    if not outputs:
        return
    grads = [torch.randn(out.shape, generator=generator, dtype=torch.double) for out in outputs]
    wanted = [*weights, x] if needs_grad else weights
    expected = torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
    for whole in (True, False):
        for one in [*weights, x]:
            one.grad = None
        with droppable_saves() if saving else nullcontext():
            outputs = execute(program, x, weights)
        given_grads = [grad.clone() for grad in grads]
        if whole:
            dinputs = stage_backward(outputs, given_grads, [x], boxed=boxed)
        else:
            dinputs, groups = stage_backward_input(outputs, given_grads, [x], weights, park_grad=False, boxed=boxed)
            del outputs
            stage_backward_weight(weights, groups)
        got = [*(weight.grad for weight in weights), *dinputs]
        for mine, other in zip(got, expected, strict=False):
            assert (mine is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9 * max(1.0, float(other.abs().max())))
