"""The cut on a reference path is the measured one, even if all names are equal."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.findings.build import judge_candidate
from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import FreedBy
from leakscope.findings.grouping import StorageGroup, group_storages
from leakscope.findings.growth import series
from leakscope.findings.model import Finding
from leakscope.findings.thresholds import Thresholds
from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference, ReferenceKind, RootKind, build

PLAIN = 8
"""Objects that may hold each other and tensors; the first is the root."""
NAMES = (
    (ReferenceKind.ATTRIBUTE, ".x"),
    (ReferenceKind.ITEM, "[0]"),
    (ReferenceKind.ITEM, "[1]"),
    (ReferenceKind.GRAD_GRAPH, ".next_functions[0]"),
)
KINDS = (ObjectKind.INSTANCE, ObjectKind.CONTAINER, ObjectKind.GRAD_NODE)


def reached(pairs: list[tuple[int, int]], starts: set[int]) -> set[int]:
    """What these objects lead to, and they themselves."""
    found = set(starts)
    while more := {held for holder, held in pairs if holder in found} - found:
        found |= more
    return found


def heap_of(kinds: list[ObjectKind], tensors: int, references: list[tuple[int, int, int]]) -> HeapGraph:
    """Plain objects, then tensors, then the memory of each tensor; what the root does not reach is garbage."""
    first, last = PLAIN, PLAIN + tensors
    ends = [(holder % PLAIN, held % last, NAMES[name]) for holder, held, name in references]
    ends += [(t, t + tensors, (ReferenceKind.MEMORY, "storage")) for t in range(first, last)]
    live = reached([(holder, held) for holder, held, _ in ends], {0})
    objects = []
    for index in range(last + tensors):
        kind = kinds[index] if index < first else ObjectKind.TENSOR if index < last else ObjectKind.STORAGE
        kind = ObjectKind.NAMESPACE if index == 0 else kind
        root = RootKind.MODULE if index == 0 else RootKind.NONE
        size = 1 << index if index >= last else 0
        objects.append(Object(index, "t", kind, "alike", "alike", "", size, -1, root, int(index not in live), 0))
    return build(objects, [Reference(k, a, b, kind, name) for k, (a, b, (kind, name)) in enumerate(ends)])


heaps = st.builds(
    heap_of,
    st.lists(st.sampled_from(KINDS), min_size=PLAIN, max_size=PLAIN),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 3)), min_size=4, max_size=30),
)


def findings_of(heap: HeapGraph) -> list[tuple[StorageGroup, Finding]]:
    """Each group of storages as if it had grown."""
    grown = [
        (group, Candidate(0, 3, heap, group, series((3,), {3: group.bytes}), 1.0, False))
        for group in group_storages(heap)
    ]
    return [(group, judge_candidate(candidate, Thresholds(1)).finding) for group, candidate in grown]


def freed(heap: HeapGraph, group: StorageGroup, references: set[int]) -> int:
    """Bytes of the group that go when these references are gone: by counting, so what closes a cycle stays."""

    def kept(gone: set[int]) -> set[int]:
        pairs = [(h, d) for k, (h, d) in enumerate(zip(heap.holder.tolist(), heap.held.tolist(), strict=True))
                 if k not in gone]  # fmt: skip
        circles = {h for h, d in pairs if h in reached(pairs, {d})}
        return reached(pairs, {0} | circles)

    return sum(int(heap.bytes[s]) for s in set(group.storages) & kept(set()) - kept(references))


@settings(max_examples=30, deadline=None)
@given(heaps)
def test_the_trace_points_at_the_reference_whose_cut_was_measured(heap: HeapGraph) -> None:
    for group, finding in findings_of(heap):
        if finding.cut is None:
            continue
        everywhere = {index for reference in finding.cut.references for index in reference.indexes}
        assert freed(heap, group, everywhere) == finding.cut.frees_bytes
        first = finding.cut.references[0]
        on_it = [k for k, hop in enumerate(finding.trace) if set(hop.references) & set(first.indexes)]
        assert finding.cut_position == (on_it[0] if on_it else None)
        if finding.freed_by == FreedBy.PROGRAM and len(finding.cut.references) == 1:
            assert finding.cut_position is not None
        if finding.cut_position is not None and len(everywhere) == 1:
            hop = finding.trace[finding.cut_position]
            assert everywhere <= set(hop.references)
            assert hop.frees_bytes == finding.cut.frees_bytes or len(hop.references) > 1


@settings(max_examples=30, deadline=None)
@given(heaps)
def test_hops_follow_one_another_in_the_heap(heap: HeapGraph) -> None:
    for _, finding in findings_of(heap):
        for hop, after in pairwise(finding.trace):
            if hop.references:
                assert heap.holder[hop.references[0]] == hop.index
                assert heap.held[hop.references[-1]] == after.index
                inner = [(int(heap.held[a]), int(heap.holder[b])) for a, b in pairwise(hop.references)]
                assert all(held == holder for held, holder in inner)
        for before, following in zip(finding.cycle, (*finding.cycle[1:], *finding.cycle[:1]), strict=True):
            assert (heap.holder[before.index], heap.held[before.index]) == (before.holder_index, before.held_index)
            assert before.held_index == following.holder_index
