"""Reference paths, cycles and retained sizes of small heaps are correct and survive JSON."""

from __future__ import annotations

import numpy as np
import pytest
from support.heap_text import heap_from, way_text

from leakscope.graph.model import HeapGraph
from leakscope.graph.paths import paths_from_roots
from leakscope.graph.retained import bytes_freed, freed_storages
from leakscope.graph.serialize import from_json, to_json
from leakscope.graph.walks import find_cycles, smallest_cycle

SHARED = """
    module train -> .losses -> list losses
    module train -> .model -> object model
    list losses -> [0] -> tensor a
    object model -> .cache -> list cache
    list cache -> [0] -> tensor a
    list losses -> [1] -> tensor b
    tensor a -> storage -> storage a 400
    tensor b -> storage -> storage b 80
"""
CYCLE = """
    function walk -> closure walk -> function walk freed=1
    function walk -> closure buffer -> tensor t freed=1
    tensor t -> storage -> storage t 64 freed=1
"""
PARALLEL = """
    module train -> .first -> tensor a
    module train -> .second -> tensor a
    tensor a -> storage -> storage a 400
"""


def named(graph: HeapGraph, holder: str, name: str) -> int:
    """Index of a reference by the label of its holder and its own name."""
    return next(
        r.index
        for r in map(graph.reference, range(len(graph.holder)))
        if r.name == name and graph.object(r.holder).label == holder
    )


def cut(graph: HeapGraph, *references: int) -> int:
    return bytes_freed(graph, np.asarray(references, dtype=np.int64))


def test_the_way_from_the_root_is_told_as_code_writes_it() -> None:
    graph = heap_from(SHARED)
    ways = paths_from_roots(graph)
    told = {
        int(graph.bytes[s]): way_text(graph, ways.start_of(graph, s), ways.path_to(graph, s))
        for s in graph.storages.tolist()
    }
    assert told[80] == "module train .losses -> list, 3 items [1] -> tensor b storage -> storage b"
    assert told[400] == "module train .losses -> list, 3 items [0] -> tensor a storage -> storage a"


def test_reachable_is_not_retained() -> None:
    graph = heap_from(SHARED)
    losses = named(graph, "module train", ".losses")
    assert cut(graph, losses) == 80
    assert cut(graph, losses, named(graph, "module train", ".model")) == 480
    assert cut(graph) == 0


def test_two_names_for_one_tensor_need_two_cuts() -> None:
    graph = heap_from(PARALLEL)
    first, second = named(graph, "module train", ".first"), named(graph, "module train", ".second")
    assert (cut(graph, first), cut(graph, second), cut(graph, first, second)) == (0, 0, 400)


def test_a_cycle_is_freed_by_the_reference_that_closes_it() -> None:
    graph = heap_from(CYCLE)
    cycles = find_cycles(graph)
    (way,) = [smallest_cycle(graph, cycles, 0)]
    assert way_text(graph, 0, way) == "function walk closure walk -> function walk"
    assert cut(graph, *way) == 64
    assert smallest_cycle(graph, cycles, 1) == []


def test_what_hangs_on_a_cycle_that_still_closes_stays() -> None:
    graph = heap_from(CYCLE + "function walk -> .again -> function walk")
    assert cut(graph, named(graph, "function walk", "closure walk")) == 0
    assert cut(graph, named(graph, "function walk", "closure buffer")) == 64
    assert len(freed_storages(graph, np.zeros(0, dtype=np.int64))) == 0


def test_a_graph_survives_its_way_through_json() -> None:
    graph = heap_from(SHARED)
    again = from_json(to_json(graph))
    assert [again.object(i) for i in range(len(again))] == [graph.object(i) for i in range(len(graph))]
    assert [again.reference(i) for i in range(len(again.holder))] == [
        graph.reference(i) for i in range(len(graph.holder))
    ]
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json({"strings": []})
