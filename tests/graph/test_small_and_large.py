"""Graph algorithms give the same results in Python, scipy and C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.heap_text import heap_from

from leakscope import native
from leakscope.graph import retained
from leakscope.graph import walks as graph_walks
from leakscope.graph.model import HeapGraph
from leakscope.graph.paths import paths_from, paths_from_roots
from leakscope.graph.walks import components, from_starts, reachable

SEEDS = range(12)


def of_all(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], Any]) -> Any:
    """What is answered of a graph that counts as small, and as large, in C and by scipy: the same."""
    answers = []
    for most, pure in ((10**9, "1"), (-1, "1"), (-1, "")):
        monkeypatch.setattr(graph_walks, "SMALL", most)
        monkeypatch.setenv("LEAKSCOPE_PURE", pure)
        answers.append(ask())
    assert answers[0] == answers[1] == answers[2]
    return answers[0]


def random_graph(seed: int) -> HeapGraph:
    """Cycles, parallel references, objects that hold themselves, and many ways of the same cost."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 60))
    names = ("[i]", ".own", ".grad_fn", "local x")
    lines = [f"module main -> [i] -> object o{n}" for n in random.integers(0, count, 3)]
    for holder, held, name in random.integers(0, (count, count, len(names)), (3 * count, 3)).tolist():
        lines.append(f"object o{holder} -> {names[name]} -> object o{held}")
    return heap_from("\n".join(lines))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_reach_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    graph = random_graph(seed)
    starts = np.unique(np.random.default_rng(seed).integers(0, len(graph), 3))

    def ask() -> list[list[bool]]:
        below = from_starts(len(graph), graph.holder, graph.held, starts)
        past = [below.reached(past=index).tolist() for index in range(len(graph))]
        return [reachable(len(graph), graph.holder, graph.held, starts).tolist(), below.reached().tolist(), *past]

    whole, _, *past = of_all(monkeypatch, ask)
    for index, reached in enumerate(past):
        assert not reached[index] and not (np.asarray(reached) & ~np.asarray(whole)).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_find_the_same_cycles(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    graph = random_graph(seed)

    def ask() -> tuple[list[bool], list[int]]:
        label, cyclic = components(len(graph), graph.holder, graph.held)
        _, first, number = np.unique(label, return_index=True, return_inverse=True)
        return cyclic[label].tolist(), first[number].tolist()  # each component by its first object

    of_all(monkeypatch, ask)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_take_the_same_paths(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    graph = random_graph(seed)
    starts = np.unique(np.random.default_rng(seed).integers(0, len(graph), 3))

    def ask() -> list[list[float]]:
        found = (paths_from_roots.__wrapped__(graph), paths_from(graph, starts))  # type: ignore[attr-defined]
        return [answer.tolist() for paths in found for answer in (paths.cost, paths.last)]

    of_all(monkeypatch, ask)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_walk_in_the_same_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    graph = random_graph(seed)

    def ask() -> list[list[int]]:
        order, before = retained._first_order(len(graph), graph.holder, graph.held, 0)
        return [order.tolist(), before[order[1:]].tolist()]

    of_all(monkeypatch, ask)


def test_of_holders_as_near_the_one_found_last_is_on_the_path() -> None:
    graph = heap_from("""
        module train -> [i] -> list a
        module train -> [i] -> list b
        list b -> [i] -> tensor t
        list a -> [i] -> tensor t
        list b -> [i] -> tensor t
    """)
    assert paths_from_roots(graph).path_to(graph, 3) == [1, 2]


@pytest.mark.parametrize("count", [graph_walks.SMALL, 300_000])
def test_a_long_chain_is_walked_without_recursion(count: int) -> None:
    holder, held = np.arange(count - 1), np.arange(1, count)
    assert reachable(count, holder, held, np.array([0])).all()
    assert not reachable(count, holder, held, np.array([1]))[0]
    label, cyclic = components(count, np.append(holder, count - 1), np.append(held, 0))
    assert set(label.tolist()) == {0} and cyclic.tolist() == [True]
    label, cyclic = components(count, holder, held)
    assert len(np.unique(label)) == count and not cyclic.any()


def test_what_no_graph_can_be_is_refused_in_c() -> None:
    walks = native.walks()
    if walks is None:
        pytest.skip("_walks was not built")
    one = np.array([0], dtype=np.int32)
    rows = [memoryview(part).cast("i") for part in walks.rows(2, one, one)]
    assert [part.tolist() for part in rows] == [[0, 1, 1], [0]]
    for holder, held in ((one + 2, one), (one, one - 1), (one, np.zeros(2, np.int32)), (one.astype(np.int64), one)):
        with pytest.raises(ValueError):
            walks.rows(2, holder, held)
    for first, below in (([0, 2, 1], [0]), ([1, 1, 1], [0]), ([], []), ([0, 1, 1], [2]), ([0, 1, 2], [0])):
        bad = np.array(first, dtype=np.int32), np.array(below, dtype=np.int32)
        with pytest.raises(ValueError):
            walks.reached(*bad, one, -1)
        with pytest.raises(ValueError):
            walks.components(*bad)
    with pytest.raises(ValueError):
        walks.reached(*rows, one + 2, -1)
    assert list(walks.reached(*rows, one, 7)) == [1, 0] and list(walks.reached(*rows, one, 0)) == [0, 0]
    far = np.array([1.5])
    assert np.frombuffer(walks.distances(3, one, one + 1, far, one, far)).tolist() == [1.5, 3.0, float("inf")]
    for columns in (
        (one + 3, one, far, one, far), (one, one - 1, far, one, far), (one, one, far, one + 3, far),
        (one, one, np.zeros(2), one, far), (one, one, far, one, np.zeros(0)),
        (one, one, far.astype(np.float32), one, far),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            walks.distances(3, *columns)
