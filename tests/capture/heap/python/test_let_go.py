"""Where another thread runs no unheld tuple is held; what is found to hold one is told as where none runs."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from leakscope.graph.model import IMMORTAL, HeapGraph
from leakscope.heap import snapshot as heap
from leakscope.heap.sweep import sweep
from leakscope.native import gc_heap

pytestmark = pytest.mark.look
SIZES = itertools.count(1009, 2)
"""Elements of the tensors of each test: what gc never frees stays with the next ones."""


class _Node:
    """Of cycles."""


def packed_in_a_tuple(size: int) -> None:
    with saved_tensors_hooks(lambda saved: (saved, "cpu"), lambda packed: packed[0]):
        torch.ones(size, requires_grad=True).sigmoid()


def packed_and_alive(size: int) -> torch.Tensor:
    with saved_tensors_hooks(lambda saved: (saved.detach(), "cpu"), lambda packed: packed[0]):
        return torch.ones(size, requires_grad=True).sigmoid()


def in_an_array_of_its_own(size: int) -> None:
    row: Any = np.empty(2, dtype=object)
    row[0], row[1] = [row], (torch.ones(size), "cpu")


class _KeepsTuple(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        ctx.kept, ctx.both = (y, "cpu"), ((y,), [y])
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0]


def kept_by_a_custom_function(size: int) -> None:
    _KeepsTuple.apply(torch.ones(size, requires_grad=True))


def in_a_future_of_torch(size: int) -> Any:
    future: Any = torch.futures.Future()
    future.set_result((torch.ones(size), "cpu"))
    return future


def in_a_generator(size: int) -> Iterator[Any]:
    def waits() -> Iterator[int]:
        both = (torch.ones(size), "cpu")
        yield len(both)

    waiting = waits()
    next(waiting)
    return waiting


def as_a_local(size: int) -> Any:
    return (torch.ones(size), {"numbers": 1}, ("inside", [torch.ones(size)]))


FREED: dict[Callable[[int], Any], int] = {
    packed_in_a_tuple: IMMORTAL, packed_and_alive: 0, in_an_array_of_its_own: IMMORTAL, kept_by_a_custom_function: 1,
    in_a_future_of_torch: 0, in_a_generator: 0, as_a_local: 0,
}  # fmt: skip


@pytest.fixture
def beside() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


def told(graph: HeapGraph, size: int) -> Counter[tuple[Any, ...]]:
    """All that is told on the way to the tensors of this size, but for the order."""
    level = [k for k in graph.storages.tolist() if graph.bytes[k] == 4 * size]
    seen, found = set(level), Counter[tuple[Any, ...]]()
    for held in level:  # which grows
        for reference in map(graph.reference, graph.into(held).tolist()):
            ends = (graph.object(k) for k in (reference.holder, held))
            found[reference.kind, reference.name, *((o.kind, o.label, o.root, o.freed, o.size) for o in ends)] += 1
            if reference.holder not in seen:
                seen.add(reference.holder)
                level.append(reference.holder)
    return found


@pytest.mark.parametrize("pure", ["", "1"], ids=["native", "Python"])
def test_another_thread_changes_nothing_of_what_is_told(
    pure: str, monkeypatch: pytest.MonkeyPatch, beside: None, nothing_collected: None
) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
    made = {make: (size, make(size)) for make, size in zip(FREED, SIZES, strict=False)}
    with monkeypatch.context() as patched:
        patched.setattr(heap, "is_alone", lambda: True)
        alone = heap.look(1, "step")
    seen = heap.look(1, "step")
    assert seen.unjudged == alone.unjudged
    graph = seen.heap
    for make, (size, _) in made.items():
        ours = [k for k in graph.storages.tolist() if graph.bytes[k] == 4 * size]
        assert {int(graph.freed[k]) for k in ours} == {FREED[make]}, make
        if gc_heap() is not None or make is not in_a_future_of_torch:  # else the tuple is left out
            assert told(graph, size) == told(alone.heap, size), make


@pytest.mark.skipif(gc_heap() is None, reason="what is read in Python has no stand-ins")
def test_a_stand_in_is_not_counted_among_the_holders_of_a_dict(nothing_collected: None) -> None:
    numbers = {"numbers": 1}
    both = (numbers, "cpu")  # held by this frame alone
    counts = []
    for alone in (True, False):
        found = sweep(lambda dicts: np.arange(len(dicts.addresses)), alone=alone)
        counts += [int(found.counts[k]) for k, obj in enumerate(found.objects) if obj is numbers]
        assert bool(found.let_go.get(id(both))) is not alone
        found.objects.clear()
    assert len(counts) == 2 and counts[0] == counts[1]
