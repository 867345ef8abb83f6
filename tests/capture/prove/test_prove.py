"""Making the cut in a forked process frees the predicted bytes."""

from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.findings import judge
from leakscope.heap.snapshot import take_heap_snapshot
from leakscope.recorder.verify_cut import _in_child, verify_cuts
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

SIZE = 512 * 64 * 4
Leak = Callable[[Any, Tensor], None]


class Keeper:
    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.by_step: dict[int, Tensor] = {}
        self.objects: list[Any] = []


class WithFinalizer:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __del__(self) -> None:
        return None


def in_three_places_through_two_tensors(keeper: Keeper, tensor: Tensor) -> None:
    keeper.outputs.append(tensor.detach())
    keeper.by_step[len(keeper.by_step)] = keeper.outputs[-1]
    keeper.objects.append(tensor.detach())


def recursive_closure(keeper: Keeper, tensor: Tensor) -> None:
    def walk(depth: int) -> Tensor:
        return walk(depth - 1) if depth else tensor


def behind_a_finalizer(keeper: Keeper, tensor: Tensor) -> None:
    keeper.objects.append(WithFinalizer(tensor.detach()))


def in_lru_cache(keeper: Keeper, tensor: Tensor) -> None:
    if not keeper.objects:
        keeper.objects.append(functools.cache(lambda number: torch.ones(512, 64)))
    keeper.objects[0](keeper.objects[0].cache_info().currsize)


def hooks_of_a_node(keeper: Keeper, tensor: Tensor) -> None:
    later = tensor.detach()
    if not keeper.objects:
        parameter = nn.Parameter(torch.ones(1))
        keeper.objects += [parameter, parameter.expand_as(parameter).grad_fn.next_functions[0][0]]
    keeper.objects[1].register_hook(lambda *_: later)


def metadata(keeper: Keeper, tensor: Tensor) -> None:
    assert tensor.grad_fn is not None
    tensor.grad_fn.metadata["output"] = tensor


@pytest.fixture(autouse=True)
def no_automatic_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def proved(leak: Leak) -> list[tuple[str, int, int | None, str]]:
    """(rule, predicted bytes, proved bytes, why not proved) of each leak that ten steps make."""
    layer, keeper, snapshots = nn.Linear(64, 64), Keeper(), []

    def step() -> None:
        leak(keeper, torch.tanh(layer(torch.randn(512, 64))))

    for number in range(1, 11):
        step()
        if number in (3, 5, 9, 10):
            snapshots.append(take_heap_snapshot(number, "last" if number == 10 else "step"))
    steps = tuple(Step(number, 0.1, None, None) for number in range(1, 11))

    def rank(seen: list[HeapSnapshot]) -> Rank:
        return Rank(0, steps, tuple(seen), Ended("stopped", 0, 10))

    run = Run(("train.py",), (rank(snapshots),), 1, "cpu", "", "", min_bytes=4096)
    answers = verify_cuts(run, rank(snapshots[:-1]), 10)
    found = judge(replace(run, ranks=(replace(rank(snapshots), proved=answers),)))
    return [
        (f.rule, f.cut.frees_bytes, f.cut.proved_bytes, f.cut.unproved) for f in found.findings if f.cut is not None
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    "leak",
    [
        in_three_places_through_two_tensors, recursive_closure, metadata, in_lru_cache, hooks_of_a_node,
    ],
)  # fmt: skip
def test_prediction_and_proof_agree_to_the_byte(leak: Leak) -> None:
    ((_, predicted, measured, why),) = proved(leak)
    assert (measured, why) == (predicted, "")
    assert predicted >= 10 * SIZE


@pytest.mark.process
def test_a_cut_that_runs_a_finalizer_is_not_tried() -> None:
    ((_, predicted, measured, why),) = proved(behind_a_finalizer)
    assert (predicted, measured) == (10 * SIZE, None)
    assert "WithFinalizer" in why and "__del__" in why


def hangs() -> int:
    time.sleep(60)
    return 1


def answers_and_keeps_the_pipe_open() -> int:
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    return 1


@pytest.mark.process
@pytest.mark.parametrize(("work", "answer"), [(hangs, None), (answers_and_keeps_the_pipe_open, 1)])
def test_a_child_is_not_waited_for_longer_than_its_timeout(work: Callable[[], int], answer: int | None) -> None:
    began = time.monotonic()
    assert _in_child(work, timeout_s=0.5) == answer
    assert time.monotonic() - began < 10, "neither for the child nor for what it has started"
