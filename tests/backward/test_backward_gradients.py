"""Whole and split backwards give the gradients of plain autograd, with and without boxing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support import backward_stages as stages
from torch import Tensor

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
