"""Generated stages have the gradients of plain autograd in every backward mode."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from support import backward_stages as stages
from support.generated_stages import Generated, make_inputs, most_summands
from torch import Tensor

from leakscope.backward import (
    droppable_saves,
    output_edges,
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)

SEEDS = range(12, 36)
DOUBLE, BFLOAT16 = 1e-12, 2.0**-7
"""What the order of a sum may change, as a part of the largest entry."""


@dataclass(frozen=True)
class Way:
    """One way to run a stage's backward."""

    split: bool = False
    edges: bool = False
    boxed: bool = False
    droppable: bool = False
    alone: bool = False
    """Each group of weights in a call of its own."""


WAYS = {
    "full": Way(),
    "full edges boxed droppable": Way(edges=True, boxed=True, droppable=True),
    "split": Way(split=True),
    "split edges boxed": Way(split=True, edges=True, boxed=True),
    "split alone": Way(split=True, alone=True),
    "split droppable": Way(split=True, droppable=True),
    "split edges boxed droppable alone": Way(split=True, edges=True, boxed=True, droppable=True, alone=True),
}


SPLIT = [name for name, way in WAYS.items() if way.split]
TOGETHER = [name for name in SPLIT if not WAYS[name].alone]
FAILS = {
    "a hook hears another gradient in the weight pass": {35: SPLIT, 32: TOGETHER},
}
"""Known failures, with the stages and ways that show them."""


class Result(NamedTuple):
    inputs: list[Tensor | None]
    weights: dict[str, Tensor | None]
    retained: list[Tensor | None]
    heard: dict[str, list[Tensor | None]]


class Case(NamedTuple):
    """A stage, the gradients that enter it, and what plain autograd makes of them."""

    stage: Generated
    inputs: list[Tensor]
    grads: Any
    expected: Result
    tolerance: float


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def copied(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.clone()


def taken(stage: Generated, dinputs: Any) -> Result:
    """Everything that the stage's backward has computed."""
    retained = [copied(value.grad) for value in stage.retained]
    stage.retained.clear()
    weights = {name: copied(weight.grad) for name, weight in stage.named_parameters()}
    return Result([copied(grad) for grad in dinputs], weights, retained, {k: v for k, v in stage.heard.items() if v})


@cache
def make_case(seed: int) -> Case:
    stage, inputs = Generated(seed), make_inputs(seed)
    outputs = stage(*inputs)
    grads = stages.grads_like(outputs)
    pairs = stages.pairs(outputs, grads)
    summands = most_summands([out for out, _ in pairs])
    torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs])
    expected = taken(stage, [x.grad for x in inputs])
    for x in inputs:
        x.grad = None
    ordered = summands < 3 and not stage.drawn["checkpoint_reentrant"]
    tolerance = 0.0 if ordered else BFLOAT16 if stage.drawn["autocast"] else DOUBLE
    return Case(stage, inputs, grads, expected, tolerance)


def run(case: Case, way: Way) -> Result:
    stage, inputs = case.stage, list(case.inputs)
    stage.start()
    with droppable_saves() if way.droppable else nullcontext():
        outputs = stage(*inputs)
    grads = stages.clone(case.grads)
    if way.boxed:
        outputs, grads = stages.as_lists(outputs), stages.as_lists(grads)
    if way.edges:
        outputs = output_edges(outputs)
    if not way.split:
        return taken(stage, stage_backward(outputs, grads, inputs, boxed=way.boxed))
    weights = list(stage.parameters())
    dinputs, groups = stage_backward_input(outputs, grads, inputs, weights, park_grad=False, boxed=way.boxed)
    del outputs, grads
    if way.alone:
        while groups:
            stage_backward_weight(weights, [groups.pop(0)], boxed=way.boxed)
    stage_backward_weight(weights, groups, boxed=way.boxed)
    return taken(stage, dinputs)


def same(name: str, mine: Tensor | None, other: Tensor | None, tolerance: float) -> None:
    assert (mine is None) == (other is None), name
    if mine is None or other is None or torch.equal(mine, other):
        return
    assert tolerance, f"{name} differs by {float((mine - other).abs().max()):.3g}"
    torch.testing.assert_close(mine, other, rtol=0, atol=tolerance * float(other.abs().max()), msg=name)


def runs() -> Iterator[Any]:
    for seed in SEEDS:
        for way in WAYS:
            reasons = [reason for reason, stages in FAILS.items() if way in stages.get(seed, ())]
            yield pytest.param(seed, way, marks=[pytest.mark.xfail(strict=True, reason=one) for one in reasons])


@pytest.mark.filterwarnings("ignore:None of the inputs", "ignore:A saved_tensors_hooks")
@pytest.mark.parametrize(("seed", "way"), list(runs()))
def test_gradients_are_those_of_plain_autograd(seed: int, way: str) -> None:
    case = make_case(seed)
    expected, found = case.expected, run(case, WAYS[way])
    for place, (mine, other) in enumerate(zip(found.inputs, expected.inputs, strict=True)):
        same(f"input {place}", mine, other, case.tolerance)
    for name, other in expected.weights.items():
        same(name, found.weights[name], other, case.tolerance)
    for place, (mine, other) in enumerate(zip(found.retained, expected.retained, strict=True)):
        same(f"retained {place}", mine, other, case.tolerance)
    assert found.heard.keys() == expected.heard.keys(), "a hook has run, or has not"
    for name, grads in found.heard.items():
        # A split backward may come by twice, with the same gradient.
        assert WAYS[way].split or len(grads) == len(expected.heard[name])
        for grad in grads:
            same(f"hook {name}", grad, expected.heard[name][0], case.tolerance)
    assert all(x.grad is None for x in case.inputs)
    assert all(storage.expired() for storage in case.stage.watched), "activations outlive their backward"
