"""The parts in C give what the Python parts give, refuse what they cannot take, and keep nothing of either."""

from __future__ import annotations

import numpy as np
import pytest
from support import native_fuzz

from leakscope import native
from leakscope.graph import paths
from leakscope.graph import walks as graph_walks

needs_c = pytest.mark.skipif(
    None in (native.gc_heap(), native.walks(), native.unheard()), reason="the parts in C were not built"
)


@needs_c
@pytest.mark.parametrize("kind", dict.fromkeys(native_fuzz.ROUNDS), ids=lambda kind: kind.__name__)
def test_a_few_seeded_rounds_find_nothing(kind: native_fuzz.Round) -> None:
    for seed in range(15):
        kind(native_fuzz.Random(seed))


@pytest.mark.parametrize("bad", [-1.0, -5e-324, float("nan"), float("-inf")])
@pytest.mark.parametrize("place", ["weight", "start"])
def test_a_cost_that_is_negative_or_no_number_is_refused_by_all_alike(bad: float, place: str) -> None:
    one = np.zeros(1, dtype=np.int32)
    weight, start = (np.array([bad if place == name else 1.0]) for name in ("weight", "start"))
    in_c = native.walks()
    parts = [graph_walks.distances, paths._distances_over_many, *([] if in_c is None else [in_c.distances])]
    said = set()
    for distances in parts:
        with pytest.raises(ValueError) as refused:
            distances(2, one, one + 1, weight, one, start)
        said.add(str(refused.value))
    assert len(said) == 1


def test_an_infinite_cost_is_that_of_no_way() -> None:
    one, far = np.zeros(1, dtype=np.int32), np.array([np.inf])
    in_c = native.walks()
    for distances in [graph_walks.distances, paths._distances_over_many, *([] if in_c is None else [in_c.distances])]:
        told = np.frombuffer(distances(2, one, one + 1, far, one, np.zeros(1)), dtype=float)
        assert told.tolist() == [0.0, np.inf]


@needs_c
def test_columns_that_are_not_aligned_or_not_flat_are_refused() -> None:
    walks = native.walks()
    unaligned = memoryview(bytearray(17))[1:].cast("i")
    flat = np.zeros(4, dtype=np.int32)
    for column in (unaligned, flat.reshape(2, 2), np.array(0, dtype=np.int32)):
        with pytest.raises(ValueError):
            walks.rows(1, column, column)
    assert walks.rows(1, flat, flat)
    book = native.gc_heap().read([[1]], np.ndarray, (), 1, 1 << 30, 0, 0, 1)["book"]
    for addresses in (memoryview(bytearray(17))[1:].cast("q"), flat, b"12345678"):
        with pytest.raises(ValueError):
            book.find(addresses)


@needs_c
def test_the_last_reference_to_a_call_may_go_while_it_runs() -> None:
    def lets_go() -> list[int]:
        held.clear()
        return [1]

    held = [native.unheard().Call(lets_go)]
    assert held[0]() == [1] and not held
