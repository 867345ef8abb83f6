"""What gc advice says follows from the collections seen and from the real gc diff, nothing else."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from support.judging import MIB, run_of

from leakscope.findings.facts import RunFacts, StaticText
from leakscope.findings.gc_advice import (
    Collected,
    CollectedAtEnd,
    CutsInstead,
    FreezeSaves,
    FullEachStep,
    OwnCollections,
    YoungSuffices,
    gc_advice,
)
from leakscope.findings.model import Cut, CutReference, Finding
from leakscope.graph.model import build
from leakscope.process.gc_control import CollectionWatch, freezing
from leakscope.run.model import Collection, Ended, GcDiff, HeapSnapshot, Rank, Step
from leakscope.run.rows import GcFreeze


def rank_of(
    collections: tuple[Collection, ...] = (), diff: GcDiff | None = None, objects: tuple[int, ...] = ()
) -> Rank:
    steps = tuple(Step(number, 0.1, None, None, collections) for number in range(1, 11))
    snapshots = tuple(
        HeapSnapshot(3 + k, "step", build([], []), None, 0, objects=count) for k, count in enumerate(objects)
    )
    return Rank(0, steps, snapshots, Ended("finished", 0, 10), gc_diff=diff)


def advice(rank: Rank, *findings: Finding) -> dict[type[RunFacts], RunFacts]:
    return {type(fact): fact for fact in gc_advice(run_of(rank), findings)}


def test_each_generation_of_the_real_diff_is_reported() -> None:
    facts = advice(rank_of(diff=GcDiff((MIB, 2 * MIB, 3 * MIB, MIB, 0), 2, (0.001, 0.002, 0.1, 0.1, 0.1), 7 * MIB)))
    assert facts.keys() == {CollectedAtEnd, FullEachStep}
    end, each = facts[CollectedAtEnd], facts[FullEachStep]
    assert isinstance(end, CollectedAtEnd) and isinstance(each, FullEachStep)
    assert end.full_collections == 2
    sizes = [(one.generation, one.freed_bytes, round(one.seconds, 3)) for one in end.by_generation]
    assert sizes == [(0, MIB, 0.001), (1, 2 * MIB, 0.002), (2, 4 * MIB, 0.3)]
    assert (each.step_seconds, round(each.times, 2)) == (0.1, 2.0)
    assert advice(rank_of(diff=GcDiff((0, 0, 0), 0, (0.001, 0.002, 0.1), 0))) == {}


@pytest.mark.parametrize(("young", "suffices"), [(9, True), (8, False)])
def test_a_young_collection_that_frees_nine_tenths_is_recommended(young: int, suffices: bool) -> None:
    diff = GcDiff((MIB, (young - 1) * MIB, (10 - young) * MIB), 0, (0.001, 0.002, 0.1), 10 * MIB)
    found = advice(rank_of(diff=diff)).get(YoungSuffices)
    assert (found is not None) is suffices
    if isinstance(found, YoungSuffices):
        assert (found.generation, found.freed_bytes, found.all_bytes) == (1, 9 * MIB, 10 * MIB)
        assert (round(found.seconds, 3), round(found.full_seconds, 3)) == (0.003, 0.103)


def test_the_programs_own_collections_are_added_up() -> None:
    full = Collection(2, 0.05, 100, MIB)
    rank = rank_of((full, Collection(0, 0.001, 3, 0)), objects=(300_000, 303_000))
    own, saves = (advice(rank)[kind] for kind in (OwnCollections, FreezeSaves))
    assert isinstance(own, OwnCollections) and isinstance(saves, FreezeSaves)
    (of_full,) = own.by_generation
    assert of_full == Collected(2, 9 * MIB, of_full.seconds, 9), "imports are in the first step"
    assert (own.steps, round(of_full.seconds, 3), round(own.seconds, 3)) == (9, 0.45, 0.459)
    assert (saves.early_objects, saves.objects, saves.step, saves.measured) == (300_000, 303_000, 3, None)
    assert saves.share == pytest.approx(0.5)


def test_what_freezing_saves_is_what_was_measured() -> None:
    rank = rank_of((Collection(2, 0.05, 100, MIB),), objects=(300_000, 400_000))
    saves = advice(replace(rank, gc_freezes=(GcFreeze(full_seconds=0.042, frozen_seconds=0.002),)))[FreezeSaves]
    assert isinstance(saves, FreezeSaves) and round(saves.frozen_seconds, 3) == 0.012


def test_rare_full_collections_ask_for_no_freeze() -> None:
    rank = rank_of(objects=(300_000, 300_100))
    one = replace(rank.steps[0], collections=(Collection(2, 0.001, 0, 0),))
    assert FreezeSaves not in advice(replace(rank, steps=(one, *rank.steps[1:])))


def test_steps_that_took_no_time_ask_for_no_freeze() -> None:
    rank = rank_of((Collection(2, 0.0, 100, MIB),), objects=(300_000, 303_000))
    assert FreezeSaves not in advice(replace(rank, steps=tuple(replace(step, seconds=0.0) for step in rank.steps)))


def test_cutting_is_put_beside_collecting() -> None:
    finding = Finding(
        "tensor-cycle", StaticText("", ""), "00000000", "leak", "gc", 6 * MIB, 2.0 * MIB, (),
        Cut((CutReference("closure collect", "train.py:218"),), MIB)
    )  # fmt: skip
    cuts = advice(rank_of(), finding)[CutsInstead]
    assert isinstance(cuts, CutsInstead)
    assert (cuts.references, cuts.where, cuts.bytes_per_step) == (1, ("train.py:218",), 2.0 * MIB)
    assert advice(rank_of(), replace(finding, severity="note")) == {}


def test_freezing_is_measured_and_undone() -> None:
    before = gc.isenabled()
    kept = [[number] for number in range(300_000)]
    measured = freezing()
    assert measured is not None and kept
    assert measured.frozen_seconds < measured.full_seconds / 3
    assert gc.get_freeze_count() == 0 and gc.isenabled() == before


def test_what_leakscope_allocates_frees_none_of_the_programs_garbage() -> None:
    watch, collected = CollectionWatch(lambda: 0), []
    gc.enable()
    gc.callbacks.append(lambda phase, info: collected.append(phase))
    try:
        with watch.suspended():
            kept = [[number] for number in range(20_000)]
            with watch.suspended():
                kept += [[number] for number in range(20_000)]
            kept += [[number] for number in range(20_000)]
            assert not collected and not gc.isenabled()
        assert gc.isenabled() and kept
        gc.disable()
        with watch.suspended():
            pass
        assert not gc.isenabled(), "as the script has it"
    finally:
        gc.callbacks.pop()
        gc.enable()


def test_a_script_that_freezes_is_left_alone() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        assert freezing() is None
        assert gc.get_freeze_count() == count
    finally:
        gc.unfreeze()
