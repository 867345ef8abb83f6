"""Are small graphs, walked in Python, and large ones, walked by scipy, told the same of?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.heap_text import heap_from

from leakscope.graph import above, small
from leakscope.graph.model import HeapGraph
from leakscope.graph.paths import paths_from, paths_from_roots
from leakscope.graph.reach import components, from_starts, reachable

SEEDS = range(12)


def both(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], Any]) -> tuple[Any, Any]:
    """What is answered of a graph that counts as small, and as large."""
    answers = []
    for most in (10**9, -1):
        monkeypatch.setattr(small, "SMALL", most)
        answers.append(ask())
    return answers[0], answers[1]


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
def test_both_reach_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    graph = random_graph(seed)
    starts = np.unique(np.random.default_rng(seed).integers(0, len(graph), 3))

    def ask() -> list[list[bool]]:
        below = from_starts(len(graph), graph.holder, graph.held, starts)
        past = [below.reached(past=index).tolist() for index in range(len(graph))]
        return [reachable(len(graph), graph.holder, graph.held, starts).tolist(), below.reached().tolist(), *past]

    little, much = both(monkeypatch, ask)
    assert little == much
    for index, reached in enumerate(little[2:]):
        assert not reached[index] and not (np.asarray(reached) & ~np.asarray(little[0])).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_both_find_the_same_cycles(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    graph = random_graph(seed)

    def ask() -> tuple[list[bool], list[int]]:
        label, cyclic = components(len(graph), graph.holder, graph.held)
        _, first, number = np.unique(label, return_index=True, return_inverse=True)
        return cyclic[label].tolist(), first[number].tolist()  # each component by its first object

    little, much = both(monkeypatch, ask)
    assert little == much


@pytest.mark.parametrize("seed", SEEDS)
def test_both_take_the_same_paths(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    graph = random_graph(seed)
    starts = np.unique(np.random.default_rng(seed).integers(0, len(graph), 3))

    def ask() -> list[list[float]]:
        found = (paths_from_roots.__wrapped__(graph), paths_from(graph, starts))  # type: ignore[attr-defined]
        return [answer.tolist() for paths in found for answer in (paths.cost, paths.last)]

    little, much = both(monkeypatch, ask)
    assert little == much


@pytest.mark.parametrize("seed", SEEDS)
def test_both_walk_in_the_same_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    graph = random_graph(seed)

    def ask() -> list[list[int]]:
        order, before = above._first_order(len(graph), graph.holder, graph.held, 0)
        return [order.tolist(), before[order[1:]].tolist()]

    little, much = both(monkeypatch, ask)
    assert little == much


def test_of_holders_as_near_the_one_found_last_is_on_the_path() -> None:
    graph = heap_from("""
        module train -> [i] -> list a
        module train -> [i] -> list b
        list b -> [i] -> tensor t
        list a -> [i] -> tensor t
        list b -> [i] -> tensor t
    """)
    assert paths_from_roots(graph).path_to(graph, 3) == [1, 2]


def test_a_long_chain_is_walked_without_recursion() -> None:
    count = small.SMALL
    holder, held = np.arange(count - 1), np.arange(1, count)
    assert small.is_small(holder) and reachable(count, holder, held, np.array([0])).all()
    label, cyclic = components(count, np.append(holder, count - 1), np.append(held, 0))
    assert set(label.tolist()) == {0} and cyclic.tolist() == [True]
