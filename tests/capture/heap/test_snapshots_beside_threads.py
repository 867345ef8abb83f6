"""Snapshots beside running threads: nothing is disturbed, and what is found is the same as without them."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from leakscope import Profiler
from leakscope.graph.model import IMMORTAL, HeapGraph
from leakscope.heap import snapshot as heap
from leakscope.heap.sweep import sweep
from leakscope.native import gc_heap
from leakscope.recorder import snapshots

SIZES = itertools.count(1009, 2)
"""Elements of the tensors of each test: what gc never frees stays with the next ones."""


@pytest.fixture(params=["", "1"], ids=["native", "Python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", request.param)


class _Node:
    """Of cycles."""


def packed_in_a_tuple(size: int) -> None:
    with saved_tensors_hooks(lambda saved: (saved, "cpu"), lambda packed: packed[0]):
        torch.ones(size, requires_grad=True).sigmoid()


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
    packed_in_a_tuple: IMMORTAL, in_an_array_of_its_own: IMMORTAL, kept_by_a_custom_function: 1, in_a_generator: 0,
    as_a_local: 0,
}  # fmt: skip


@pytest.fixture
def beside() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


def described(graph: HeapGraph, size: int) -> Counter[tuple[Any, ...]]:
    """All references on the way to the tensors of this size."""
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


def test_another_thread_does_not_change_a_snapshot(
    reader: None, monkeypatch: pytest.MonkeyPatch, beside: None, nothing_collected: None
) -> None:
    """No unheld tuple is held beside another thread, as that one may still resize it."""
    made = {make: (size, make(size)) for make, size in zip(FREED, SIZES, strict=False)}
    with monkeypatch.context() as patched:
        patched.setattr(heap, "is_alone", lambda: True)
        alone = heap.take_heap_snapshot(1, "step")
    seen = heap.take_heap_snapshot(1, "step")
    assert seen.unjudged == alone.unjudged
    graph = seen.heap
    for make, (size, _) in made.items():
        ours = [k for k in graph.storages.tolist() if graph.bytes[k] == 4 * size]
        assert {int(graph.freed[k]) for k in ours} == {FREED[make]}, make
        assert described(graph, size) == described(alone.heap, size), make


@pytest.mark.skipif(gc_heap() is None, reason="what is read in Python has no stand-ins")
def test_a_stand_in_is_not_counted_as_a_referrer(nothing_collected: None) -> None:
    numbers = {"numbers": 1}
    both = (numbers, "cpu")  # held by this frame alone
    counts = []
    for alone in (True, False):
        found = sweep(lambda dicts: np.arange(len(dicts.addresses)), alone=alone)
        counts += [int(found.counts[k]) for k, obj in enumerate(found.objects) if obj is numbers]
        assert bool(found.let_go.get(id(both))) is not alone
        found.objects.clear()
    assert len(counts) == 2 and counts[0] == counts[1]


def test_a_tuple_that_is_being_made_is_read(reader: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "is_alone", lambda: True)  # whatever threads the runner of the tests has
    seen: list[HeapGraph] = []

    def step(number: int) -> torch.Tensor:
        if number == 3:
            seen.append(heap.take_heap_snapshot(number, "step").heap)
        return torch.ones(700 + number)

    assert len(tuple(step(number) for number in range(12))) == 12
    (graph,) = seen
    assert {4 * 700, 4 * 701, 4 * 702} <= set(graph.bytes.tolist())
    names = {graph.reference(k).name for k in range(len(graph.holder))}
    assert {"[0]", "[1]", "[2]"} <= names


def test_another_thread_may_go_on_filling_a_tuple(reader: None) -> None:
    going, failed = [True], []

    def numbers() -> Iterator[int]:
        yield from range(100)

    def fill() -> None:
        while going:
            try:
                tuple(numbers())
            except SystemError as error:
                failed.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    kept = (torch.ones(431), torch.ones(432))
    try:
        graph = heap.take_heap_snapshot(1, "step").heap
    finally:
        going.clear()
        thread.join()
    assert not failed
    assert "local kept" in {graph.reference(k).name for k in range(len(graph.holder))}
    assert {4 * 431, 4 * 432} <= set(graph.bytes.tolist())
    assert len(kept) == 2


class _Churning:
    """A thread that makes and drops tensors, in containers that looks go through, and cycles that it takes apart."""

    def __init__(self) -> None:
        self.going, self.errors = True, list[BaseException]()
        self.thread = threading.Thread(target=self._run)
        self.held = [{}, set(), deque(), OrderedDict(), []]  # type: ignore[var-annotated]
        self.alive = _Node()
        self.alive.tensor = torch.ones(ALIVE)  # type: ignore[attr-defined]

    def _run(self) -> None:
        mapping, members, queue, ordered, items = self.held
        try:
            for k in itertools.count():
                made = [torch.ones(64 + n) for n in range(20)]
                mapping.update(enumerate(made))  # type: ignore[attr-defined]
                members.update(made)  # type: ignore[attr-defined]
                queue.extend(made)  # type: ignore[attr-defined]
                ordered.update(enumerate(made))  # type: ignore[attr-defined]
                items.extend(made)  # type: ignore[attr-defined]
                made[0].data = torch.zeros(100 + k % 50)
                first, second = self.alive, _Node()  # a cycle of what is alive, for a moment
                second.other, first.other = first, second  # type: ignore[attr-defined]
                del first.other  # type: ignore[attr-defined]
                for each in self.held:
                    each.clear()  # type: ignore[attr-defined]
                if not self.going:
                    return
        except BaseException as error:
            self.errors.append(error)
            raise

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.going = False
        self.thread.join()


ALIVE, LEAKED, KEPT = 5001, 5002, 5003
"""Elements of tensors that are told apart by their sizes."""


def test_garbage_is_found_beside_threads_that_allocate(reader: None, nothing_collected: None) -> None:
    of_others = _garbage(heap.take_heap_snapshot(0, "step").heap)
    leaked = _Node()
    leaked.me, leaked.tensor = leaked, torch.ones(LEAKED)  # type: ignore[attr-defined]
    del leaked
    kept = {"tensor": torch.ones(KEPT)}
    churning = [_Churning(), _Churning()]
    with churning[0], churning[1]:
        seen = [heap.take_heap_snapshot(number, "step") for number in (1, 2)]
    for snapshot in seen:
        assert _garbage(snapshot.heap) - of_others == {4 * LEAKED: 1}, snapshot.unjudged
        assert {4 * KEPT, 4 * ALIVE} <= set(snapshot.heap.bytes.tolist())
    assert not churning[0].errors + churning[1].errors
    assert kept


def _garbage(graph: HeapGraph) -> Counter[int]:
    """How many storages of each size a collection would free; other tests of the process may have left some."""
    return Counter(int(graph.bytes[k]) for k in graph.storages.tolist() if graph.freed[k])


def test_a_run_goes_on_after_a_snapshot_that_timed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_TIMEOUT_FACTOR", -1)
    model = torch.nn.Linear(8, 8)
    with Profiler(tmp_path / "run", budget=1.0) as profiler:
        for _ in range(8):
            with profiler.step():
                model(torch.randn(2, 8)).sum().backward()
    (rank,) = profiler.run.ranks
    assert len(rank.steps) == 8 and not rank.heap_snapshots
    assert any("timed out" in note for note in rank.notes)
    assert profiler.findings.verdict.value == "inconclusive"
