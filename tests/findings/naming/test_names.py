"""References are named from the root that the user knows; their trace and its lines are true."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.heap_text import heap_from, path_text

from leakscope.findings.build import judge_candidate
from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import FreedBy
from leakscope.findings.grouping import ReferenceKey, StorageGroup, group_storages
from leakscope.findings.growth import series
from leakscope.findings.model import Finding
from leakscope.findings.naming import as_expression, file_at, hops, place_of
from leakscope.findings.thresholds import Thresholds
from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference, ReferenceKind, RootKind, build
from leakscope.graph.paths import paths_from_roots

HELD_TWICE = """
    frame main where=train.py:9 -> local trainer -> object Trainer
    callback LS.on_step_end where=train.py:4 -> local trainer -> object Trainer
    object Trainer -> .model -> network Net
    callback LS.on_step_end -> local model -> network Net
    network Net -> .kept -> list kept 3
    list kept -> [2] -> tensor a
    tensor a -> storage -> storage a 400
"""


def index_of(heap: HeapGraph, name: str) -> int:
    return next(k for k in range(len(heap)) if heap.object(k).name == name)


def written(heap: HeapGraph) -> str:
    """The reference of what holds the one storage, as it is written."""
    path = paths_from_roots(heap).path_to(heap, int(heap.storages[0]))
    kept = next(k for k in path if heap.reference(k).name == ".kept")
    return as_expression(heap, path, kept)


def test_a_callback_s_argument_loses_to_a_root_that_is_there_from_step_to_step() -> None:
    assert written(heap_from(HELD_TWICE)) == "trainer.model.kept in main()"


def test_what_only_a_callback_holds_is_told_by_it_and_before_a_library_s_frame() -> None:
    lines = [line for line in HELD_TWICE.splitlines() if "main" not in line]
    assert written(heap_from("\n".join(lines))) == "model.kept in LS.on_step_end()"
    library = HELD_TWICE.replace("main where=train.py:9", "run where=<lib/run.py>:9").replace(".model", "._model")
    assert written(heap_from(library)) == "model.kept in LS.on_step_end()"


def test_a_trace_begins_with_what_was_given_and_is_written_by_that_name() -> None:
    heap = heap_from(HELD_TWICE)
    trainer, net = index_of(heap, "Trainer"), index_of(heap, "Net")
    assert written(replace(heap, given={trainer: "trainer"})) == "trainer.model.kept"
    both = replace(heap, given={trainer: "trainer", net: "trainer.model"})
    assert written(both) == "trainer.model.kept"
    path = paths_from_roots(both).path_to(both, int(both.storages[0]))
    assert int(both.holder[path[0]]) == net
    first = hops(both, net, path, 1, {}, (None, None))[0]
    assert first.object.startswith("trainer.model (")


def test_a_fingerprint_has_the_name_only_where_types_do_not_tell_two_given_objects_apart() -> None:
    heap = heap_from(HELD_TWICE + "object Trainer -> .teacher -> network Net2")
    net, other = index_of(heap, "Net"), index_of(heap, "Net2")

    def expected(given: dict[int, str]) -> str:
        named = replace(heap, given=given)
        path = paths_from_roots(named).path_to(named, int(named.storages[0]))
        return ReferenceKey.of_path(named, net, path).fingerprint

    assert expected({net: "trainer.model"}) == expected({net: "model"})
    alike = replace(heap, type=np.where(np.arange(len(heap)) == other, heap.type[net], heap.type))
    assert alike.object(net).type == alike.object(other).type
    heap = alike
    assert expected({net: "model", other: "teacher"}) != expected({net: "teacher", other: "model"})


@pytest.mark.parametrize(
    ("text", "file", "line", "function"),
    [
        ("train.py:41", "train.py", 41, ""),
        ("train.py:41 forward", "train.py", 41, "forward"),
        ("my project/train it.py:41 forward (aten::addmm)", "my project/train it.py", 41, "forward (aten::addmm)"),
        ("<torch/nn/modules/module.py>:7 __call__", "<torch/nn/modules/module.py>", 7, "__call__"),
        ("a:3 b/train.py:41 main", "a:3 b/train.py", 41, "main"),
        ("(odd) dir/train.py:41 <module>", "(odd) dir/train.py", 41, "<module>"),
        ("two\nlines.py:2 f", "two\nlines.py", 2, "f"),
    ],
)  # fmt: skip
def test_file_line_and_function(text: str, file: str, line: int, function: str) -> None:
    place = place_of(text)
    assert place == (file, line, function) and file_at(text) == file
    assert place is not None and text.startswith(place.at)


@pytest.mark.parametrize("text", ["", "train.py", ":3", "train.py:0", "train.py:x", "aten::addmm", "train.py:4x f"])
def test_no_line(text: str) -> None:
    assert place_of(text) is None and file_at(text) == ""


@pytest.mark.parametrize(("kind", "where"), [("function", "train.py:9"), ("frame", "train.py:4")])
def test_a_function_has_its_own_line_and_a_call_that_of_its_variable(kind: str, where: str) -> None:
    graph = heap_from(f"{kind} watch where=train.py:9 -> closure model -> network Net")
    objects = [graph.object(index) for index in (0, 1)]
    graph = build(objects, [replace(graph.reference(0), where="train.py:4")])
    assert [hop.where for hop in hops(graph, 0, (0,), 0, {}, (None, None))] == [where, ""]


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


@pytest.mark.parametrize(
    ("where", "first"), [("<torch/optim/optimizer.py>:538", "module train"), ("train.py:7", "frame wrapper")]
)
def test_a_root_of_the_user_precedes_a_frame_of_a_library(where: str, first: str) -> None:
    """A running frame at this line and, one reference farther, the user's module hold an optimizer."""
    graph = heap_from(
        """frame wrapper -> local self -> object optimizer
        module train -> .trainer -> object trainer
        object trainer -> .optimizer -> object optimizer
        object optimizer -> .state -> tensor a
        tensor a -> storage -> storage a 400"""
    )
    lines = graph.where.copy()
    lines[0] = len(graph.strings)
    graph = replace(graph, strings=(*graph.strings, where), where=lines)
    (storage,) = graph.storages.tolist()
    ways = paths_from_roots(graph)
    assert path_text(graph, ways.start_of(graph, storage), ways.path_to(graph, storage)).startswith(first)
