"""The dominator tree gives the same retained size as a walk over the graph."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference, ReferenceKind, RootKind, build
from leakscope.graph.retained import dominators, freed_by_walk, freed_storages, freed_without, passing

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
