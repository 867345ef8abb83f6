"""What stands exactly at a bound, and what stands one beyond it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support import examples
from support.heap_text import heap_from

from leakscope.findings.candidates import CounterEvidence as GrowthCourse
from leakscope.findings.candidates import (
    _by_counters,
    _has_stopped,
    _representative_step,
    _to_the_end,
    _would_have_grown,
    course,
)
from leakscope.findings.capacity import AtEnd, FullAt, at_end_of_run, full_at
from leakscope.findings.categories import categories, garbage_of
from leakscope.findings.counters import CountKind, also_grows
from leakscope.findings.facts import FreedBy
from leakscope.findings.grouping import ReferenceKey, _keep_coming, data_numbers
from leakscope.findings.growth import Series
from leakscope.findings.library import Trend, _course, holders_of
from leakscope.findings.merge import _of_any_item
from leakscope.findings.model import RankSummary, Sighting
from leakscope.findings.rules.rank_skew import _median_of_others, _model
from leakscope.run.model import Ended, HeapSnapshot, Rank, Step
from leakscope.run.rows import CountsAtStep, DeviceBlocks, EndKind, LayoutAtSnapshot, MemoryThere

MIB = 1 << 20


def rank_of(*levels: float) -> Rank:
    """Steps from 1 on, at whose ends so many MiB are counted."""
    steps = tuple(Step(k, 0.1, round(level * MIB), None) for k, level in enumerate(levels, 1))
    return Rank(0, steps, (), Ended(EndKind.FINISHED, 0, len(steps)))


@pytest.mark.parametrize(("steps", "found"), [(40, True), (39, False)])
def test_counters_rise_over_eight_steps_of_each_half(steps: int, found: bool) -> None:
    """Looks at 8 and 24 of 40: two halves of eight steps before the last look, two after it."""
    line = Series((2, 4, 8, 24), (MIB, MIB, MIB, 17 * MIB))
    longer = _by_counters(rank_of(*range(steps)), line, items=4)
    assert longer == (Series((*line.steps, 40), (*line.bytes, 33 * MIB)) if found else None)
    assert _by_counters(rank_of(*range(steps)), line, items=3) is None


def test_what_began_late_is_followed_to_the_end_of_the_main_code() -> None:
    line, rank = Series((3, 5, 7, 9), (0, 0, 0, 2 * MIB)), rank_of(*range(20))
    assert _to_the_end(rank, line, 20, 13 * MIB) == Series((3, 5, 7, 9, 20), (0, 0, 0, 2 * MIB, 13 * MIB))
    for wrong in ((line, 9, 13 * MIB), (line, 20, 2 * MIB), (Series((7, 9), (0, 2 * MIB)), 20, 13 * MIB)):
        assert _to_the_end(rank, *wrong) is None
    assert _to_the_end(rank_of(*[9] * 20), line, 20, 13 * MIB) is None, "the counters do not bear it out"


def test_growth_at_each_step_has_stopped_where_the_last_look_saw_none() -> None:
    stopped = Series((3, 5, 7, 9), (2 * MIB, 4 * MIB, 6 * MIB, 6 * MIB))
    assert _has_stopped(rank_of(*range(8), 7, 7), stopped, MIB)
    assert not _has_stopped(rank_of(0, 9, *[9] * 8), stopped, MIB), "not at each step by the counters"
    paused = Series((3, 5, 7, 9), (2 * MIB, 2 * MIB, 6 * MIB, 6 * MIB))
    assert not _has_stopped(rank_of(*range(8), 7, 7), paused, MIB)


@pytest.mark.parametrize(("steps", "missed"), [(7, False), (8, True)])
def test_two_items_must_be_missed_whatever_the_snapshots_without_growth(steps: int, missed: bool) -> None:
    """Items of 4 MiB, one every four steps, of which every second snapshot sees none."""
    line = Series((3, 5, 7, 9, 11), (0, 4 * MIB, 4 * MIB, 8 * MIB, 8 * MIB))
    group = SimpleNamespace(bytes=8 * MIB, storages=(1, 2))
    assert line.per_step == MIB
    assert _would_have_grown(line, group, steps) is missed  # type: ignore[arg-type]


def test_a_pause_at_the_end_is_growth_unless_that_levels_off() -> None:
    assert Series((3, 5, 7, 9, 10), (0, 100, 200, 300, 300)).grew_lately
    assert not Series((3, 5, 7, 9, 10), (0, 100, 200, 201, 201)).grew_lately
    assert not Series((3, 5, 7, 9, 11), (0, 100, 200, 300, 300)).grew_lately


def test_what_leaks_gain_after_their_last_snapshot_counts_from_it() -> None:
    """Nothing was counted at the step of the snapshot."""
    rank = rank_of(*[0] * 9, *range(1, 12))
    leak = replace(
        examples.cycle_finding(), freed_by=FreedBy.PROGRAM, bytes_per_step=10.0 * MIB, retained_bytes=9 * MIB,
        sightings=(Sighting(0, 9, 9 * MIB),),
    )  # fmt: skip
    assert at_end_of_run(examples.run(rank), [leak]) == AtEnd(20 * MIB, 0)
    other = replace(rank, number=1, host_memory=(MemoryThere("the host's memory", 1 << 30),))
    of_both = replace(leak, sightings=(*leak.sightings, Sighting(1, 9, 9 * MIB)))
    assert at_end_of_run(examples.run(rank, other), [of_both]).full_at_step == 0, "of the first rank's memory"


@pytest.mark.parametrize("fallen", [0, 1, 5 * MIB])
def test_a_rank_that_released_memory_takes_nothing_from_what_another_gained(fallen: int) -> None:
    """One rank gains 11 MiB after its last snapshot, the other's counters fall or stay."""
    gained, released = rank_of(*[10] * 9, *range(11, 22)), rank_of(*[10] * 20)
    last = replace(released.steps[-1], counted_bytes=10 * MIB - fallen)
    released = replace(released, number=1, steps=(*released.steps[:-1], last))
    leak = replace(
        examples.cycle_finding(), freed_by=FreedBy.PROGRAM, bytes_per_step=8.0 * MIB, retained_bytes=9 * MIB,
        sightings=(Sighting(0, 9, 9 * MIB), Sighting(1, 9, 9 * MIB)),
    )  # fmt: skip
    assert at_end_of_run(examples.run(gained, released), [leak]) == AtEnd(20 * MIB, 0)


def test_a_rank_without_a_snapshot_has_no_garbage_and_no_model() -> None:
    assert garbage_of(rank_of(1, 2)) == 0 and _model(RankSummary()) == 0


def test_a_full_device_is_full_at_the_last_step() -> None:
    """At step 99, which is not rounded to 100: no byte is left."""
    rank = rank_of(*range(99))
    layout = LayoutAtSnapshot(0, 98 * MIB, 98 * MIB, 98 * MIB, 0, 0, 0, 0, driver=(0, 99 * MIB))
    blocks = DeviceBlocks(90, "step", "cuda", (), (), (), (), (), (), (layout,))  # type: ignore[arg-type]
    steps = tuple(replace(step, counted_on="cuda") for step in rank.steps)
    assert full_at(replace(rank, steps=steps, device_blocks=(blocks,)), 2) == FullAt(99, 99 * MIB)


def test_the_gradient_of_a_wrapper_is_no_part_of_it() -> None:
    """A distributed parameter has a local tensor, and a gradient with one of its own."""
    found = categories(
        heap_from(
            """
            module train -> .weight -> parameter weight
            parameter weight -> ._local_tensor -> tensor part
            tensor part -> storage -> storage part 400
            parameter weight -> .grad -> tensor gradient
            tensor gradient -> ._local_tensor -> tensor of_gradient
            tensor of_gradient -> storage -> storage of_gradient 300
            """
        )
    )
    assert (found["parameter"], found["gradient"]) == (400, 300)


@pytest.mark.parametrize(("depth", "category"), [(3, "input or label"), (4, "held by a named root")])
def test_a_batch_is_nested_three_deep(depth: int, category: str) -> None:
    """A tuple of dicts of lists, and one container more."""
    ends = ["module train", *(f"list c{k}" for k in range(depth)), "tensor a", "storage a 400"]
    names = [".batch", *["[0]"] * depth, "storage"]
    lines = (f"{a} -> {name} -> {b}" for a, name, b in zip(ends, names, ends[1:], strict=False))
    found = categories(heap_from("\n".join(lines)))
    assert {name: size for name, size in found.items() if size} == {category: 400}


@pytest.mark.parametrize(("bytes_", "step"), [((4, 8, 4), 9), ((4, 9, 4), 5)])
def test_a_group_that_gc_has_just_emptied_is_judged_where_it_was_largest(bytes_: tuple[int, ...], step: int) -> None:
    graph = heap_from("")
    snapshot = HeapSnapshot(3, "step", graph, None, 0)
    groups = {at: (snapshot, SimpleNamespace(bytes=size)) for at, size in zip((3, 5, 9), bytes_, strict=True)}
    assert _representative_step(groups) == step  # type: ignore[arg-type]


@pytest.mark.parametrize(("full", "reported"), [(2000, 2000), (2100, 0)])
def test_a_forecast_reaches_twenty_times_as_far_as_the_run(full: int, reported: int) -> None:
    rank = replace(rank_of(*range(100)), host_memory=(MemoryThere("the host's memory", (99 + full - 100) * MIB),))
    leak = replace(
        examples.cycle_finding(), freed_by=FreedBy.PROGRAM, bytes_per_step=1.0 * MIB, retained_bytes=9 * MIB,
        sightings=(Sighting(0, 9, 9 * MIB),),
    )  # fmt: skip
    assert at_end_of_run(examples.run(rank), [leak]) == AtEnd(100 * MIB, reported)


def test_descriptors_of_a_kind_that_was_not_there_count_from_none() -> None:
    rows = tuple(CountsAtStep(k, {"/dev/null": 1, **({"pipe": 3 * k} if k > 3 else {})}) for k in range(3, 10))
    (found,) = also_grows(replace(rank_of(*range(10)), counts=rows), 2, MIB)
    assert (found.what, found.by, found.before, found.now) == (CountKind.DESCRIPTORS, (("pipe", 27),), 1, 28)


@pytest.mark.parametrize(
    ("bytes_", "course"),
    [((5, 5), Trend.UNKNOWN), ((5, 5, 5), Trend.STEADY), ((5, 7, 5), Trend.VARIES), ((5, 6, 7, 8), Trend.GROWS)],
)
def test_the_course_of_what_a_library_keeps(bytes_: tuple[int, ...], course: Trend) -> None:
    assert _course(Series(tuple(range(3, 3 + len(bytes_))), bytes_)) == course


def test_a_finding_without_a_cut_is_merged_as_it_is() -> None:
    found = replace(examples.cycle_finding(), cut=None)
    assert _of_any_item(found.subject, found.trace, found.cut) == {}


@pytest.mark.parametrize(("rose", "late"), [(7, True), (8, False)])
def test_garbage_is_freed_late_where_it_rises_by_less_than_half_of_what_is_made(rose: int, late: bool) -> None:
    seen = tuple(Sighting(rank, step, 10 + (step - 3) * rose // 4) for rank in (0, 1) for step in (3, 7))
    found = replace(examples.cycle_finding(), bytes_per_step=8.0, sightings=seen)
    assert found.freed_late == late
    assert not replace(found, bytes_per_step=0.0).freed_late


@pytest.mark.parametrize(("own", "others"), [(1, 6.5), (4, 5), (9, 2.5), (6, 2.5)])
def test_the_median_of_the_others_leaves_one_out(own: int, others: float) -> None:
    assert _median_of_others([1, 4, 9] if own != 6 else [1, 4, 6], own) == others


def test_counters_of_another_device_acquit_nothing() -> None:
    line = Series((3, 5, 7, 9), (2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB))
    rank = rank_of(*range(10), *[9] * 20)
    assert course(rank, line, MIB) == GrowthCourse.STOPPED
    *steps, last = rank.steps
    moved = replace(rank, steps=(*steps, replace(last, counted_on="cuda")))
    assert course(moved, line, MIB) == GrowthCourse.CONTINUED


@pytest.mark.parametrize(
    ("names", "keep_coming"), [(("a", "b"), False), (("a", "b", "b"), False), (("a", "b", "c"), True)]
)
def test_names_keep_coming_once_new_ones_came_at_two_snapshots(names: tuple[str, ...], keep_coming: bool) -> None:
    assert _keep_coming(names) is keep_coming


@pytest.mark.parametrize(("siblings", "snapshots", "is_data"), [(4, 2, True), (3, 2, False), (4, 3, False)])
def test_four_numbered_names_are_data_unless_three_snapshots_show_that_they_stay(
    siblings: int, snapshots: int, is_data: bool
) -> None:
    keys = {ReferenceKey(("module train", f".client{k}")) for k in range(siblings)}
    masked = {data_numbers([keys] * snapshots).mask(key) for key in keys}
    assert len(masked) == (1 if is_data else siblings)


@pytest.mark.parametrize(("tensors", "complete"), [(3998, True), (3999, False)])
def test_a_search_that_ends_early_has_not_seen_native_holders(tensors: int, complete: bool) -> None:
    """It visits 4,000 objects, the storage among them."""
    lines = "\n".join(f"tensor t{k} -> storage -> storage s 64" for k in range(tensors))
    graph = heap_from(lines)
    (storage,) = graph.storages.tolist()
    assert holders_of(graph, storage, np.zeros(len(graph), bool)).native is not complete
