"""What gc advice says follows from the collections seen and from the real gc diff, nothing else."""

from __future__ import annotations

import gc
from dataclasses import replace

from leakscope.findings.facts import StaticText
from leakscope.findings.gc_advice import gc_advice
from leakscope.findings.model import Cut, CutReference, Finding
from leakscope.graph.model import build
from leakscope.process.gc_control import CollectionWatch, freezing
from leakscope.report.run_text import run_text
from leakscope.run.model import Collection, Ended, GcDiff, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import GcFreeze

MIB = 1 << 20


def run_of(rank: Rank) -> Run:
    return Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0.1.0")


def rank_of(
    collections: tuple[Collection, ...] = (), diff: GcDiff | None = None, objects: tuple[int, ...] = ()
) -> Rank:
    steps = tuple(Step(number, 0.1, None, None, collections) for number in range(1, 11))
    looks = tuple(HeapSnapshot(3 + k, "step", build([], []), None, 0, objects=count) for k, count in enumerate(objects))
    return Rank(0, steps, looks, Ended("finished", 0, 10), gc_diff=diff)


def said(rank: Rank, *findings: Finding) -> str:
    return "\n".join(run_text(gc_advice(run_of(rank), findings)))


def test_nothing_is_said_where_gc_frees_nothing() -> None:
    assert said(rank_of(diff=GcDiff((0, 0, 0), 0, (0.001, 0.002, 0.1), 0))) == ""


def test_each_generation_of_the_real_diff_is_told() -> None:
    text = said(rank_of(diff=GcDiff((MIB, 2 * MIB, 3 * MIB, MIB, 0), 2, (0.001, 0.002, 0.1, 0.1, 0.1), 7 * MIB)))
    assert "generation 1 freed 2.00 MiB in 2.0 ms, generation 2 freed 4.00 MiB in 300.0 ms" in text
    assert "2 full collections in a row" in text
    assert "gc.collect(1)" not in text
    assert "makes a step of 100.0 ms 2.0 times as long" in text


def test_a_young_collection_that_does_the_same_is_recommended() -> None:
    text = said(rank_of(diff=GcDiff((MIB, 9 * MIB, 0), 0, (0.001, 0.002, 0.1), 10 * MIB)))
    assert "gc.collect(1) frees 10.00 MiB of these 10.00 MiB in 3.0 ms instead of 103.0 ms" in text
    assert "gc.collect(0)" not in text


def test_the_programs_own_collections_are_added_up() -> None:
    full = Collection(2, 0.05, 100, MIB)
    text = said(rank_of((full, Collection(0, 0.001, 3, 0)), objects=(300_000, 303_000)))
    assert "in the 9 steps after the first: 9 of generation 2, freed 9.00 MiB in 450.0 ms" in text, (
        "imports are in the first"
    )
    assert "generation 0" not in text
    assert "50% of the step time); 300,000 of its 303,000 objects exist since step 3" in text
    assert "51.0 ms per step (51% of the time)" in text, "all 18 of them, the young ones too"
    assert "gc.freeze() after warm-up skips them; the savings were not measured" in text


def test_what_freezing_saves_is_what_was_measured() -> None:
    rank = rank_of((Collection(2, 0.05, 100, MIB),), objects=(300_000, 400_000))
    measured = GcFreeze(full_seconds=0.042, frozen_seconds=0.002)
    text = said(replace(rank, gc_freezes=(measured,)))
    assert "about 12.0 ms instead (measured: 42.0 ms with all objects, 2.0 ms with all objects frozen)" in text


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


def test_rare_full_collections_ask_for_no_freeze() -> None:
    rank = rank_of(objects=(300_000, 300_100))
    one = replace(rank.steps[0], collections=(Collection(2, 0.001, 0, 0),))
    assert "freeze" not in said(replace(rank, steps=(one, *rank.steps[1:])))


def test_cutting_is_put_beside_collecting() -> None:
    finding = Finding(
        "tensor-cycle", StaticText("", ""), "00000000", "leak", "gc", 6 * MIB, 2.0 * MIB, (),
        Cut((CutReference("closure collect", "train.py:218"),), MIB)
    )  # fmt: skip
    text = said(rank_of(), finding)
    assert "Cutting the reference above (train.py:218) frees the same 2.00 MiB per step immediately" in text
    assert said(rank_of(), replace(finding, severity="note")) == ""
