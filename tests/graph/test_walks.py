"""The walks in C and their twin in Python give the same, and what no graph can be is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.heap_text import heap_from

from leakscope import native
from leakscope.graph import _walks_fallback as in_python
from leakscope.graph.paths import paths_from_roots
from leakscope.graph.walks import breadth_first, components, from_starts, reachable

in_c = native.walks()
needs_c = pytest.mark.skipif(in_c is None, reason="_walks was not built")

COUNT = 12
objects = st.integers(0, COUNT - 1)
costs = st.sampled_from([0.0, 1.0, 1.0, 0.5, 1e-3, 5e-324, 1e308, float("inf")]) | st.floats(0, 10)
references = st.lists(st.tuples(objects, objects, costs), max_size=40)
"""Cycles, parallel references, objects that hold themselves, and many paths of one cost."""
some = st.lists(st.tuples(objects, costs), min_size=1, max_size=4, unique_by=lambda start: start[0])


def both(name: str, *arguments: Any) -> list[Any]:
    """What the function gives in C, once it has given the same in Python."""
    answers = []
    for engine in (in_c, in_python):
        given = getattr(engine, name)(*arguments)
        kind = {"reached": bool, "distances": np.float64}.get(name, np.int32)
        answers.append([np.frombuffer(part, dtype=kind) for part in (given if type(given) is tuple else (given,))])
    assert [part.tolist() for part in answers[0]] == [part.tolist() for part in answers[1]]
    return answers[0]


@needs_c
@given(references, some, st.integers(-1, COUNT))
def test_c_and_python_give_the_same(
    pairs: list[tuple[int, int, float]], starts: list[tuple[int, float]], past: int
) -> None:
    holder, held, index = (
        np.array([one[k] for one in of], dtype=np.int32) for of, k in ((pairs, 0), (pairs, 1), (starts, 0))
    )
    weight, cost = (np.array([one[-1] for one in of], dtype=np.float64) for of in (pairs, starts))
    rows = both("rows", COUNT, holder, held)
    both("components", *rows)
    (whole,) = both("reached", *rows, index, -1)
    (around,) = both("reached", *rows, index, past)
    assert not (around & ~whole).any() and not (0 <= past < COUNT and around[past])
    order, before = both("breadth_first", *rows, int(index[0]))
    (from_first,) = both("reached", *rows, index[:1], -1)
    assert sorted(order.tolist()) == np.flatnonzero(from_first).tolist()
    assert all((before[k], k) in {pair[:2] for pair in pairs} for k in order[1:])
    (far,) = both("distances", COUNT, holder, held, weight, index, cost)
    assert not np.isfinite(far[~whole]).any()


def test_of_holders_as_near_the_one_found_last_is_on_the_path() -> None:
    graph = heap_from("""
        module train -> [i] -> list a
        module train -> [i] -> list b
        list b -> [i] -> tensor t
        list a -> [i] -> tensor t
        list b -> [i] -> tensor t
    """)
    assert paths_from_roots(graph).path_to(graph, 3) == [1, 2]


def test_of_what_one_object_holds_the_lower_number_is_walked_first() -> None:
    holder, held = np.array([0, 0, 3, 1, 0]), np.array([3, 1, 2, 2, 1])
    order, before = breadth_first(4, holder, held, 0)
    assert order.tolist() == [0, 1, 3, 2] and before.tolist() == [-1, 0, 1, 0]


@pytest.mark.parametrize("pure", ["", "1"])
def test_a_long_chain_is_walked_without_recursion(pure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
    count = 50_000
    holder, held = np.arange(count - 1), np.arange(1, count)
    assert reachable(count, holder, held, np.array([0])).all()
    assert from_starts(count, holder, held, np.array([0])).reached(past=7).sum() == 7
    assert not reachable(count, holder, held, np.array([1]))[0]
    label, cyclic = components(count, np.append(holder, count - 1), np.append(held, 0))
    assert set(label.tolist()) == {0} and cyclic.tolist() == [True]
    label, cyclic = components(count, holder, held)
    assert len(np.unique(label)) == count and not cyclic.any()


@pytest.mark.parametrize("bad", [-1.0, -5e-324, float("nan"), float("-inf")])
@pytest.mark.parametrize("place", ["weight", "start"])
@pytest.mark.parametrize("engine", [pytest.param(in_c, marks=needs_c, id="c"), pytest.param(in_python, id="python")])
def test_a_cost_that_is_negative_or_not_a_number_is_refused(engine: Any, bad: float, place: str) -> None:
    one = np.zeros(1, dtype=np.int32)
    weight, start = (np.array([bad if place == name else 1.0]) for name in ("weight", "start"))
    with pytest.raises(ValueError):
        engine.distances(2, one, one + 1, weight, one, start)


@needs_c
def test_what_no_graph_can_be_is_refused_in_c() -> None:
    one = np.array([0], dtype=np.int32)
    rows = [memoryview(part).cast("i") for part in in_c.rows(2, one, one)]
    assert [part.tolist() for part in rows] == [[0, 1, 1], [0]]
    for holder, held in ((one + 2, one), (one, one - 1), (one, np.zeros(2, np.int32)), (one.astype(np.int64), one)):
        with pytest.raises(ValueError):
            in_c.rows(2, holder, held)
    walks: tuple[Callable[..., Any], ...] = (
        lambda *rows: in_c.reached(*rows, one, -1),
        lambda *rows: in_c.breadth_first(*rows, 0),
        in_c.components,
    )
    for first, below in (([0, 2, 1], [0]), ([1, 1, 1], [0]), ([], []), ([0, 1, 1], [2]), ([0, 1, 2], [0])):
        for walk in walks:
            with pytest.raises(ValueError):
                walk(np.array(first, dtype=np.int32), np.array(below, dtype=np.int32))
    for outside in (-1, 2):
        with pytest.raises(ValueError):
            in_c.breadth_first(*rows, outside)
        with pytest.raises(ValueError):
            in_c.reached(*rows, one + outside, -1)
    assert list(in_c.reached(*rows, one, 7)) == [1, 0] and list(in_c.reached(*rows, one, 0)) == [0, 0]
    far = np.array([1.5])
    assert np.frombuffer(in_c.distances(3, one, one + 1, far, one, far)).tolist() == [1.5, 3.0, float("inf")]
    for columns in (
        (one + 3, one, far, one, far), (one, one - 1, far, one, far), (one, one, far, one + 3, far),
        (one, one, np.zeros(2), one, far), (one, one, far, one, np.zeros(0)),
        (one, one, far.astype(np.float32), one, far),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            in_c.distances(3, *columns)
