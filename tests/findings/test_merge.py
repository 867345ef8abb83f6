"""Findings with a common cause are merged, and the reported cut frees all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from support.judging import MIB, rank_of, run_of

from leakscope.findings.facts import AlsoFreed, BufferKind, CommBuffers, FreedBy, Plateaued
from leakscope.findings.growth import Series
from leakscope.findings.judge import judge
from leakscope.findings.merge import MERGED, MERGED_CUT, _is_part, decide_severities, merge_findings
from leakscope.findings.model import Cut, Finding
from leakscope.findings.rules.dist_autograd_context import OpenContextsFacts
from leakscope.findings.thresholds import Thresholds

STEPS = (3, 5, 9, 10)


def hooked(name: str, size: int, more: str = "") -> str:
    """An object with a hook of its own that is a method of itself, and a tensor where it has a size."""
    text = f"""
        object {name} freed=1 -> ._hooks -> dict of-{name} freed=1
        dict of-{name} -> [0] -> method hook-{name} freed=1
        method hook-{name} -> .__self__ -> object {name}"""
    if size:
        text += f"""
        object {name} -> .weight -> tensor {name} freed=1
        tensor {name} -> storage -> storage {name} {size} freed=1"""
    return f"{text}\n{more}\n"


def parents(count: int, of_parent: int, of_child: int, alone: int = 0) -> str:
    """Parents that each have a child, and parents that have none."""
    text = ""
    for k in range(count):
        child = f"object parent#{k} -> .child -> object child#{k}"
        text += hooked(f"parent#{k}", of_parent) + hooked(f"child#{k}", of_child, child)
    return text + "".join(hooked(f"parent#alone{k}", of_parent) for k in range(count * alone))


def found_in(*heaps: Callable[[int], str]) -> tuple[Finding, ...]:
    """What is found where each rank has one of these heaps."""
    ranks = (rank_of(heap, number, at=STEPS, last=10) for number, heap in enumerate(heaps))
    return judge(run_of(*ranks, min_bytes=64 * 1024)).findings


@pytest.mark.parametrize(("of_parent", "of_child"), [(MIB, 2 * MIB), (2 * MIB, MIB)])
def test_a_parent_that_is_freed_by_part_of_its_childs_cut_is_the_same_leak(of_parent: int, of_child: int) -> None:
    (finding,) = found_in(lambda count: parents(count, of_parent, of_child))
    assert finding.cut is not None and len(finding.cut.references) == 2
    assert finding.cut.frees_bytes == finding.retained_bytes == 10 * 3 * MIB
    assert (finding.count, finding.bytes_per_step) == (20, 3 * MIB)
    assert [s.bytes for s in finding.sightings] == [step * 3 * MIB for step in STEPS]


def registered(step: int) -> str:
    """Parameters that an optimizer has in its groups and in its state, and what it keeps of each."""
    text = f"module train -> .state -> dict state {step}\nmodule train -> .groups -> list groups {step}\n"
    for k in range(step):
        text += f"""
            dict state -> [{k}] -> dict of-{k}
            dict of-{k} -> ['average'] -> tensor average-{k}
            tensor average-{k} -> storage -> storage average-{k} {2 * MIB}
            dict state -> key {k} -> parameter p{k}
            list groups -> [{k}] -> parameter p{k}
            parameter p{k} -> storage -> storage p{k} {MIB}
        """
    return text


def test_what_a_part_of_anothers_cut_lets_go_of_is_the_same_leak() -> None:
    (finding,) = found_in(registered)
    assert finding.cut is not None
    assert {r.written for r in finding.cut.references} == {"train.state", "train.groups"}
    assert finding.cut.frees_bytes == finding.retained_bytes == 10 * 3 * MIB
    assert finding.bytes_per_step == 3 * MIB


def test_what_a_leak_frees_does_not_count_what_only_a_note_would_free() -> None:
    leak, note = sorted(found_in(lambda count: parents(count, MIB, 1024)), key=lambda f: -f.retained_bytes)
    assert [leak.severity, note.severity] == ["leak", "note"]
    assert leak.cut is not None and len(leak.cut.references) == 1
    assert leak.cut.frees_bytes == leak.retained_bytes == 10 * MIB


@pytest.mark.parametrize(
    ("one", "other", "is_part"),
    [
        ((FreedBy.GC, "a"), (FreedBy.GC, "ab"), True),
        ((FreedBy.GC, "c"), (FreedBy.GC, "ab"), False),
        ((FreedBy.GC, "ab"), (FreedBy.GC, "ab"), False),
        ((FreedBy.GC, "a"), (FreedBy.PROGRAM, "ab"), False),
        ((FreedBy.NEVER, "a"), (FreedBy.NEVER, "ab"), False),
    ],
)
def test_a_leak_is_part_of_one_whose_cut_has_more_references(
    one: tuple[FreedBy, str], other: tuple[FreedBy, str], is_part: bool
) -> None:
    both = (
        SimpleNamespace(freed_by=by, cut=SimpleNamespace(references=cut), cut_in=frozenset(cut), rule="", severity="")
        for by, cut in (one, other)
    )
    assert _is_part(*both) is is_part  # type: ignore[arg-type]


def test_every_field_has_a_way_in_which_it_is_merged() -> None:
    assert set(MERGED) == {field.name for field in fields(Finding)}
    assert set(MERGED_CUT) == {field.name for field in fields(Cut)}


def test_a_merged_cut_frees_what_all_free_and_is_told_where_all_are() -> None:
    (one,) = found_in(lambda count: parents(count, 0, MIB))
    assert one.cut is not None
    other = replace(one, retained_bytes=1, cut=replace(one.cut, frees_bytes=5, after_gc=True, is_exact=False))
    merged = merge_findings([one, other, replace(other, cut=None)]).cut
    assert merged is not None and merged.references == one.cut.references
    assert (merged.frees_bytes, merged.after_gc, merged.is_exact) == (one.cut.frees_bytes + 5, True, False)


def test_what_two_ranks_found_is_summed() -> None:
    (one,) = found_in(lambda count: parents(count, 0, MIB))
    buffers = CommBuffers(2, MIB, 1, (BufferKind(2, "send", 1, 0, "train.py:4"),))
    one = replace(
        one, before_bytes=5, host_bytes=6, counted_bytes=7, settled_by=Plateaued(9), comm_buffers=buffers,
        beside=(AlsoFreed(100, "numpy array"),), facts=OpenContextsFacts(3, ()), made_at=("train.py:1",),
    )  # fmt: skip
    other = replace(
        one, sightings=tuple(replace(s, rank=1) for s in one.sightings), retained_bytes=2 * one.retained_bytes,
        beside=(AlsoFreed(11, "numpy array"), AlsoFreed(1, "bytes object")), settled_by=None, keeps_graphs=True,
        cut_in=frozenset(), made_at=("train.py:2",),
    )  # fmt: skip
    both = merge_findings([one, other])
    assert both.ranks == (0, 1) and both.retained_bytes == 3 * one.retained_bytes
    assert (both.before_bytes, both.host_bytes, both.counted_bytes, both.count) == (10, 12, 14, 2 * one.count)
    assert both.beside == (AlsoFreed(111, "numpy array"), AlsoFreed(1, "bytes object"))
    assert both.comm_buffers == CommBuffers(4, 2 * MIB, 2, (BufferKind(4, "send", 1, 0, "train.py:4"),))
    assert both.facts == OpenContextsFacts(3, ())
    assert (both.settled_by, both.keeps_graphs, both.cut_in) == (None, True, one.cut_in)
    assert both.made_at == ("train.py:2", "train.py:1"), "the larger one's first"
    assert merge_findings([one, one]).settled_by == Plateaued(9)
    assert merge_findings([replace(one, retained_bytes=9 * one.retained_bytes), other]).settled_by is None


@pytest.mark.parametrize(("first", "severities"), [("note", ["leak"] * 3), ("leak", ["leak", "note", "note"])])
def test_notes_with_the_cut_of_a_leak_stay_notes(first: str, severities: list[str]) -> None:
    """Together they are large enough: with no leak among them, all are."""
    candidate = SimpleNamespace(
        on_device=False, is_certain=True, settled_by=None, series=Series((3, 5, 7), (0, 2 * MIB, 4 * MIB))
    )
    cut = SimpleNamespace(keys=("a",), where="", references=(1,))
    judged = [
        SimpleNamespace(
            severity=severity, cut=cut, cut_in=frozenset(), cycle=(), freed_by=FreedBy.PROGRAM, retained_bytes=4 * MIB,
            rule="", subject="", bytes_per_step=MIB, candidate=candidate, facts=SimpleNamespace(is_bounded=False),
            decide_severity=lambda: None,
        )
        for severity in (first, "note", "note")
    ]  # fmt: skip
    decide_severities(judged, Thresholds(min_bytes=2 * MIB))  # type: ignore[arg-type]
    assert [one.severity for one in judged] == severities


def cycles(kinds: str, sizes: dict[str, int]) -> Callable[[int], str]:
    """Objects that hold themselves, in this order in the heap."""
    return lambda count: "".join(
        f"object {kind}#{k} freed=1 -> .me{kind} -> object {kind}#{k}\nobject {kind}#{k} -> .kept -> tensor {kind}{k} "
        f"freed=1\ntensor {kind}{k} -> storage -> storage {kind}{k} {sizes[kind]} freed=1\n"
        for kind in kinds
        for k in range(count)
    )


def test_indexes_of_the_heaps_of_two_ranks_are_not_compared() -> None:
    # the same places in both heaps, of the other kind
    first, second = found_in(cycles("ab", {"a": MIB, "b": 2 * MIB}), cycles("ba", {"a": 2 * MIB, "b": MIB}))
    assert first.cut_in and first.cut_in.isdisjoint(second.cut_in)
    assert {heap.rank for heap, _ in first.cut_in} == {0, 1}
    assert first.cut is not None and second.cut is not None
    assert set(first.cut.references[0].indexes) & set(second.cut.references[0].indexes), "or nothing is compared"
