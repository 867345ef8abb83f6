"""Does the tree of dominators free what a walk over the graph frees?"""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference, ReferenceKind, RootKind, build
from leakscope.graph.retained import dominators, freed_by_walk, freed_storages, freed_without, passing

KINDS = (ReferenceKind.ATTRIBUTE, ReferenceKind.OPERAND)


def graph_of(roots: list[bool], references: list[tuple[int, int, bool]]) -> HeapGraph:
    """Objects that each own a power of two in bytes; a reference is (holder, held, whether a running statement makes it)."""
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


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=300, deadline=None)
@given(heaps)
@example(DIAMOND)
def test_retained_bytes_are_those_freed_with_every_reference_to_an_object(graph: HeapGraph) -> None:
    tree = dominators(graph)
    retained = tree.retained_bytes(graph)
    for index in np.flatnonzero(tree.sole >= 0).tolist():
        assert retained[index] == graph.bytes[freed_by_walk(graph, graph.into(index))].sum()
    assert not retained[~tree.kept].any()


def test_a_chain_of_many_nodes_that_share_a_weight_takes_no_square_of_them() -> None:
    count = 20_000
    chain = [(k, k + 1, False) for k in range(count)]
    weights = [(k, count + 1, False) for k in range(1, count + 1)]
    graph = graph_of_chain(count + 2, chain + weights)
    tree = dominators(graph)
    assert tree.sole[1] == 0
    assert int(tree.retained_bytes(graph)[1]) == count + 1


def graph_of_chain(n: int, references: list[tuple[int, int, bool]]) -> HeapGraph:
    objects = [
        Object(k, "t", ObjectKind.STORAGE, "", "", "", 1, -1, RootKind.NONE if k else RootKind.MODULE, 0, 0)
        for k in range(n)
    ]
    return build(objects, [Reference(k, a, b, ReferenceKind.ATTRIBUTE, ".x") for k, (a, b, _) in enumerate(references)])
