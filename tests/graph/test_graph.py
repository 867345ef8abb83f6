"""Reference paths, cycles, retained sizes and referrers of small heaps, also after JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.heap_text import heap_from, path_text

from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference, ReferenceKind, RootKind, build
from leakscope.graph.retained import dominators, freed_by_walk, freed_storages, freed_without, passing
from leakscope.graph.serialize import from_json, is_same, to_json
from leakscope.graph.walks import ReferrerIndex, find_cycles, in_rows, occurrences, smallest_cycle

GRAPH = replace(
    heap_from("object net freed=1 -> .strategy -> object other freed=1\nobject other -> .model -> object net"),
    set_by={1: "gpytorch"},
)


def test_who_sets_an_attribute_is_read_again() -> None:
    read = from_json(json.loads(json.dumps(to_json(GRAPH))))
    assert is_same(read, GRAPH) and read.set_by == {1: "gpytorch"}
    assert "set_by" not in to_json(replace(GRAPH, set_by={}))


@pytest.mark.parametrize("wrong", [{"2": "gpytorch"}, {"-1": "gpytorch"}, {"1": 3}, ["gpytorch"]])
def test_what_sets_no_reference_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"set_by|no text"):
        from_json(to_json(GRAPH) | {"set_by": wrong})


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
    return int(graph.bytes[freed_storages(graph, np.asarray(references, dtype=np.int64))].sum())


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
    assert path_text(graph, 0, way) == "function walk closure walk -> function walk"
    assert cut(graph, *way) == 64
    assert smallest_cycle(graph, cycles, 1) == []


def test_what_hangs_on_a_cycle_that_still_closes_stays() -> None:
    graph = heap_from(CYCLE + "function walk -> .again -> function walk")
    assert cut(graph, named(graph, "function walk", "closure walk")) == 0
    assert cut(graph, named(graph, "function walk", "closure buffer")) == 64
    assert len(freed_storages(graph, np.zeros(0, dtype=np.int64))) == 0


KINDS = (ReferenceKind.ATTRIBUTE, ReferenceKind.OPERAND)


def graph_of(roots: list[bool], references: list[tuple[int, int, bool]]) -> HeapGraph:
    """Objects that each own a power of two of bytes; a reference is (holder, held, is it made by a running one)."""
    objects = [
        Object(k, "t", ObjectKind.STORAGE, "", "", "", 1 << k, -1, RootKind.MODULE if root else RootKind.NONE, 0, 0)
        for k, root in enumerate(roots)
    ]
    n = len(roots)
    return build(objects, [Reference(k, a % n, b % n, KINDS[o], ".x") for k, (a, b, o) in enumerate(references)])


heaps = st.builds(
    graph_of,
    st.lists(st.sampled_from([False, False, False, True]), min_size=1, max_size=12),
    st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 11), st.sampled_from([False, False, False, True])), max_size=24
    ),
)
DIAMOND = graph_of([True, False, False, False], [(0, 1, False), (0, 2, False), (1, 3, False), (2, 3, False)])


@settings(max_examples=60, deadline=None)
@given(heaps)
@example(DIAMOND)
def test_one_cut_frees_what_a_walk_says(graph: HeapGraph) -> None:
    for reference in range(len(graph.holder)):
        cut = np.asarray([reference], dtype=np.int64)
        walked = freed_by_walk(graph, cut)
        assert freed_without(graph, cut).tolist() == walked.tolist()
        assert freed_storages(graph, cut).tolist() == graph.storages[walked[graph.storages]].tolist()
        later = freed_by_walk(graph, np.concatenate([cut, passing(graph)]))
        assert freed_without(graph, cut, later=True).tolist() == later.tolist()


@settings(max_examples=60, deadline=None)
@given(heaps)
@example(DIAMOND)
def test_what_goes_with_an_object_goes_with_every_reference_to_it(graph: HeapGraph) -> None:
    tree = dominators(graph)
    for index in np.flatnonzero(tree.sole >= 0).tolist():
        assert tree.dominated(index).tolist() == freed_by_walk(graph, graph.into(index)).tolist()


COUNT = 9
places = st.integers(0, COUNT - 1)
pairs = st.lists(st.tuples(places, places), max_size=30)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(references=pairs, asked=st.sets(st.integers(0, COUNT + 2)))
@pytest.mark.parametrize("pure", ["", "1"])
def test_what_holds_some_objects_is_all_that_holds_them(
    references: list[tuple[int, int]], asked: set[int], pure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, held = (np.array([pair[k] for pair in references], dtype=np.int32) for k in (0, 1))
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
    held_by = ReferrerIndex(COUNT, holder, held)
    into = held_by.into(np.array(sorted(asked), dtype=np.int64))
    assert Counter(zip(*(column.tolist() for column in into), strict=True)) == Counter(
        pair for pair in references if pair[1] in asked
    )
    assert held_by.times().tolist() == [sum(pair[1] == k for pair in references) for k in range(COUNT)]
    assert [column.dtype for column in into] == [np.int32, np.int32]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4))))
def test_rows_follow_each_other(rows: list[tuple[int, int]]) -> None:
    first, lengths = (np.array([row[k] for row in rows], dtype=np.int64) for k in (0, 1))
    assert in_rows(first, lengths).tolist() == [place for start, many in rows for place in range(start, start + many)]


@given(st.lists(places), st.lists(places))
def test_occurrences_are_counted(values: list[int], asked: list[int]) -> None:
    counted = occurrences(np.sort(np.array(values, dtype=np.int32)), np.array(asked, dtype=np.int64))
    assert counted.tolist() == [values.count(value) for value in asked]
