"""Tuples that C is still filling are looked at as far as they are, and are not held: CPython could not resize them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from leakscope.graph.model import HeapGraph
from leakscope.heap import snapshot as heap

pytestmark = pytest.mark.look
READERS = pytest.mark.parametrize("pure", ["", "1"], ids=["native", "Python"])


@READERS
def test_a_look_in_the_middle_of_a_tuple_that_is_being_made(pure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
    monkeypatch.setattr(heap, "is_alone", lambda: True)  # whatever threads the runner of the tests has
    seen: list[HeapGraph] = []

    def step(number: int) -> torch.Tensor:
        if number == 3:
            seen.append(heap.look(number, "step").heap)
        return torch.ones(700 + number)

    assert len(tuple(step(number) for number in range(12))) == 12
    ((graph),) = seen
    assert {4 * 700, 4 * 701, 4 * 702} <= set(graph.bytes.tolist())
    names = {graph.reference(k).name for k in range(len(graph.holder))}
    assert {"[0]", "[1]", "[2]"} <= names


@READERS
def test_another_thread_may_go_on_filling_a_tuple(pure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
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
        graphs = [heap.look(number, "step").heap for number in range(2)]
    finally:
        going.clear()
        thread.join()
    assert not failed
    for graph in graphs:
        named = {(graph.reference(k).name, int(graph.bytes[graph.held[k]])) for k in range(len(graph.holder))}
        assert "local kept" in {name for name, _ in named}, "a frame's tuple is told as ever"
        assert {4 * 431, 4 * 432} <= set(graph.bytes.tolist())
    assert len(kept) == 2
