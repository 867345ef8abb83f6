"""The cut of a cycle lies on it and is minimal; what two hold or native code keeps is cut at each holder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.heap_text import heap_from
from support.judging import MIB, judged

from leakscope.findings.candidates import Candidate
from leakscope.findings.cut import best_cut
from leakscope.findings.facts import HopStatus
from leakscope.findings.grouping import StorageGroup, group_storages
from leakscope.findings.growth import series
from leakscope.findings.model import Cut, Finding
from leakscope.graph import retained
from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference, build

OBJECTS = 7
BYTES = 10
PATCHED_FORWARD = """
    object linear -> ._old_forward -> method forward
    method forward -> .__self__ -> object linear
    object linear -> .forward -> object new_forward
    object new_forward -> .__self__ -> object linear
    object linear -> .weight -> tensor weight
    tensor weight -> storage -> storage weight 64
"""


def candidate_of(graph: HeapGraph, group: StorageGroup) -> Candidate:
    return Candidate(0, 3, graph, group, series((3,), {3: group.bytes}), 1.0, False)


def cut_of(text: str) -> Cut | None:
    graph = heap_from(text)
    graph = replace(graph, freed=np.ones_like(graph.freed))
    (group,) = group_storages(graph)
    return best_cut(candidate_of(graph, group)).cut


def written(cut: Cut | None) -> set[str]:
    assert cut is not None
    return {reference.written for reference in cut.references}


def test_two_cycles_through_one_object_are_cut_together() -> None:
    cut = cut_of(PATCHED_FORWARD)
    assert cut is not None and cut.frees_bytes == 64
    assert written(cut) == {"._old_forward of object linear", ".forward of object linear"}


def test_one_name_is_one_reference_however_often_it_stands() -> None:
    children = "\n".join(
        f"object node#0 -> .child{k} -> object leaf{k}\nobject leaf{k} -> .parent -> object node#0" for k in range(12)
    )
    held = "object node#0 -> .value -> tensor t\ntensor t -> storage -> storage t 64"
    assert written(cut_of(f"{children}\n{held}")) == {".parent of object leaf0"}


def test_what_no_four_references_free_has_no_cut() -> None:
    rings = "\n".join(f"object hub -> .out{k} -> object o{k}\nobject o{k} -> .back{k} -> object hub" for k in range(5))
    held = "object hub -> .value -> tensor t\ntensor t -> storage -> storage t 64"
    assert cut_of(f"{rings}\n{held}") is None


def test_memory_of_a_cycle_without_a_cut_is_reported_by_its_last_reference() -> None:
    rings = "\n".join(f"object hub -> .out{k} -> object o{k}\nobject o{k} -> .back{k} -> object hub" for k in range(5))
    graph = heap_from(
        f"{rings}\nobject hub -> .rows -> list rows\nlist rows -> [0] -> tensor t\ntensor t -> storage -> storage t 64"
    )
    graph = replace(graph, freed=np.ones_like(graph.freed))
    (group,) = group_storages(graph)
    best = best_cut(candidate_of(graph, group))
    assert best.cut is None
    assert [graph.reference(reference).name for reference in best.references] == ["[0]"]


def test_what_a_library_keeps_once_is_not_the_users_to_cut() -> None:
    trials = "\n".join(
        f"""
        function watch#{k} -> closure model -> object model#{k}
        object model#{k} -> .hook -> function watch#{k}
        object model#{k} -> .weight -> tensor weight{k}
        tensor weight{k} -> storage -> storage weight{k} 64"""
        for k in range(5)
    )
    graph = heap_from(f"{trials}\nobject frame -> .itself -> object frame\nobject frame -> .back -> object model#0")
    frame = next(k for k in range(len(graph)) if graph.object(k).name == "frame")
    where = np.full(len(graph), graph.strings.index(""), dtype=np.int64)
    where[frame] = len(graph.strings)
    graph = replace(graph, freed=np.ones_like(graph.freed), where=where, strings=(*graph.strings, "<torch/fx.py>:1"))
    (group,) = (group for group in group_storages(graph) if len(group.storages) > 1)
    cut = best_cut(candidate_of(graph, group)).cut
    assert cut is not None and cut.frees_bytes == 4 * 64 and len(cut.references) == 1


@st.composite
def references_between(draw: st.DrawFn) -> list[tuple[int, int]]:
    objects = st.integers(0, OBJECTS - 1)
    return draw(st.lists(st.tuples(objects, objects), min_size=1, max_size=12, unique=True))


@settings(max_examples=30, deadline=None)
@given(references_between(), st.sets(st.integers(0, OBJECTS - 1), min_size=1, max_size=3))
@example([(0, 0), (0, 1), (1, 0), (1, 1)], {0})
@example([(0, 1), (1, 0), (0, 2), (2, 2)], {2})
@example([(0, 1), (1, 2), (2, 0), (1, 0)], {0, 2})
def test_no_fewer_references_free_it(pairs: list[tuple[int, int]], having: set[int]) -> None:
    graph = _graph(pairs, having)
    for group in group_storages(graph):
        if not group.freed:
            continue
        cut = best_cut(candidate_of(graph, group)).cut
        inner = [k for k in range(len(pairs)) if _leads(pairs, pairs[k][1], pairs[k][0])]
        fewest = next(
            (n for n in range(1, 5) for some in combinations(inner, n) if _frees(graph, group, some) == group.bytes),
            None,
        )
        if fewest is None:
            assert cut is None or cut.frees_bytes < group.bytes
            continue
        assert cut is not None and len(cut.references) == fewest
        reported = [r for reference in cut.references for r in reference.indexes]
        assert set(reported) <= set(inner)
        assert _frees(graph, group, reported) == cut.frees_bytes == group.bytes
        assert all(_frees(graph, group, some) < group.bytes for some in combinations(reported, len(reported) - 1))


def test_a_large_knot_takes_few_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 1_000
    objects = [Object(k, "node", "instance", f"node {k}", f"n{k}", "", 0, -1, "", 1, 0) for k in range(count)]
    objects += [Object(count, "tensor", "tensor", "t", "t", "", 0, -1, "", 1, 0)]
    objects += [Object(count + 1, "storage", "storage", "s", "s", "", 64, -1, "", 1, 0)]
    pairs = [(k, (k * 7 + j * 13 + 1) % count) for k in range(count) for j in range(6)]
    pairs += [(0, count), (count, count + 1)]
    kinds = ["attribute"] * (len(pairs) - 1) + ["memory"]
    graph = build(objects, [Reference(k, *pair, kinds[k], f".r{k}") for k, pair in enumerate(pairs)])
    (group,) = group_storages(graph)
    walks: list[int] = []
    real = retained.GarbageAbove.left
    monkeypatch.setattr(retained.GarbageAbove, "left", lambda *a: walks.append(1) or real(*a))
    assert best_cut(candidate_of(graph, group)).cut is None
    assert 0 < len(walks) <= 60


def _graph(pairs: list[tuple[int, int]], having: Collection[int]) -> HeapGraph:
    """Objects with names of their own, a storage behind some; what nothing keeps is not in a heap."""
    everything = [*pairs, *((owner, OBJECTS + owner) for owner in having)]
    alive = _alive(everything, 2 * OBJECTS)
    objects = [
        Object(k, "o", "storage" if k >= OBJECTS else "instance", f"o{k}", f"o{k}", "", BYTES * (k >= OBJECTS), -1, "",
               int(k in alive), 0)
        for k in range(2 * OBJECTS)
    ]  # fmt: skip
    references = [
        Reference(k, *pair, "memory" if pair[1] >= OBJECTS else "attribute", f".r{k}")
        for k, pair in enumerate(everything)
    ]
    return build(objects, references)


def _alive(pairs: Collection[tuple[int, int]], count: int) -> set[int]:
    """What reference counting leaves: an object goes when nothing that is left holds it."""
    alive = set(range(count))
    while True:
        held = {held for holder, held in pairs if holder in alive}
        if alive <= held:
            return alive
        alive &= held


def _frees(graph: HeapGraph, group: StorageGroup, cut: Collection[int]) -> int:
    left = [(int(graph.holder[r]), int(graph.held[r])) for r in range(len(graph.holder)) if r not in set(cut)]
    alive = _alive(left, len(graph))
    return sum(int(graph.bytes[s]) for s in group.storages if s not in alive)


def _leads(pairs: list[tuple[int, int]], start: int, end: int) -> bool:
    reached = {start}
    while new := {held for holder, held in pairs if holder in reached} - reached:
        reached |= new
    return end in reached


HELD = (
    "object log -> .errors -> list errors {count}\nlist errors -> [{k}] -> exception error#{k}\n"
    "exception error#{k} -> .__traceback__ -> object traceback#{k}\nobject traceback#{k} -> local x -> tensor t{k}\n"
    "object log -> .losses -> list losses {count}\nlist losses -> [{k}] -> tensor loss{k}\n"
    "tensor loss{k} -> .grad_fn -> node Mul{k}\nnode Mul{k} -> .next_functions[0] -> node Norm{k}\n"
    "tensor t{k} -> storage -> storage t{k} {size}\n"
)
BY_ATTRIBUTE = "node Norm{k} -> .y -> tensor t{k}\ntensor t{k} -> .grad_fn -> node Norm{k}\n"
SAVED = "node Norm{k} -> saved result -> tensor t{k}\n"
SAVED_BY_ITSELF = SAVED + "tensor t{k} -> .grad_fn -> node Norm{k}\n"


def found(more: str) -> Finding:
    def heap(step: int) -> str:
        text = "frame main -> local log -> object log\n"
        lines = [line for k in range(step) for line in (HELD + more).format(k=k, count=step, size=MIB).splitlines()]
        return text + "\n".join(dict.fromkeys(lines))

    return max(judged(heap).findings, key=lambda finding: finding.retained_bytes)


@pytest.mark.parametrize("more", [SAVED, BY_ATTRIBUTE], ids=["saved", "attribute of its own node"])
def test_both_are_cut_and_each_has_its_path(more: str) -> None:
    finding = found(more)
    assert finding.cut is not None and finding.cut.frees_bytes == finding.retained_bytes == 9 * MIB
    first, second = finding.cut.references
    assert {first.name, second.name} == {".errors", ".losses"}
    assert first.path == () and first.trace is not None, "the trace leads over it"
    other = [hop for hop in second.path if set(hop.references) & set(second.indexes)]
    assert [hop.reference for hop in other] == [second.name]
    assert second.path[-1].kind == finding.trace[-1].kind == ObjectKind.STORAGE
    statuses = [hop.status for hop in second.path]
    assert statuses == sorted(statuses) and statuses[2] == HopStatus.LEAKED


def test_a_list_that_leaks_is_not_drawn_as_expected_where_no_cut_is_known() -> None:
    finding = found(SAVED_BY_ITSELF)  # gc does not see that cycle
    assert finding.cut is None
    held = {hop.object.partition(",")[0]: hop.status for hop in finding.trace}
    assert held["list"] == HopStatus.LEAKED
