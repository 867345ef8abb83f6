"""Tuples that C is still filling are looked at as far as they are, and are not held: CPython could not resize them."""

from __future__ import annotations

import pytest
import torch

from leakscope.capture.heap import look as heap
from leakscope.graph.model import HeapGraph

pytestmark = pytest.mark.look
READERS = pytest.mark.parametrize("pure", ["", "1"], ids=["native", "Python"])


@READERS
def test_a_look_in_the_middle_of_a_tuple_that_is_being_made(pure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
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
