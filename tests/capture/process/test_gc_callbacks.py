"""What leakscope allocates does not decide when the program's garbage goes."""

from __future__ import annotations

import gc

import pytest

from leakscope.process import gc_control
from leakscope.process.gc_control import CollectionWatch
from leakscope.process.patches import Patches


@pytest.mark.parametrize("made", [0, 50, 3000])
def test_gcs_count_of_young_objects_is_afterwards_as_it_was(made: int) -> None:
    watch, kept = CollectionWatch(lambda: None), [[] for _ in range(500)]  # type: ignore[var-annotated]
    gc.collect()
    kept += [[] for _ in range(600)]
    before = gc.get_count()
    with watch.suspended():
        kept += [[] for _ in range(made)]
        if not made:
            del kept[-400:]
    after = gc.get_count()
    assert after[0] == pytest.approx(before[0], abs=20) and after[1:] == before[1:]


def test_the_programs_own_collection_makes_the_weights_good_again() -> None:
    watch = CollectionWatch(lambda: None)
    patches = Patches()
    watch.install(patches)
    try:
        with watch.suspended():
            kept = [[] for _ in range(3000)]  # type: ignore[var-annotated]
        gc.collect(0)
        assert gc.get_count()[0] < 100, "what is made while collecting begins is not counted"
        with watch.suspended():
            kept += [[] for _ in range(3500)]
        assert gc.get_count()[0] < 100
    finally:
        patches.take_out()


def _collect_a_cycle(generation: int) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    gc.collect(generation)


def test_memory_is_counted_around_young_collections_only_while_some_of_them_free_anything() -> None:
    counts: list[int] = []

    def counted() -> int:
        counts.append(1)
        return 1000 - len(counts)

    watch, patches = CollectionWatch(counted), Patches()
    gc.collect()
    watch.install(patches)
    try:
        for _ in range(gc_control._ATTENTIVE):
            gc.collect(0)
        watch.taken()
        asked = len(counts)
        for _ in range(100):
            gc.collect(0)
        assert len(counts) == asked, "none has freed anything for long"
        _collect_a_cycle(0)
        _collect_a_cycle(0)
        first, second = watch.taken()
        assert (first.collected, first.freed_bytes) == (1, None), "nobody expected it"
        assert (second.collected, second.freed_bytes) == (1, 1)
        for _ in range(gc_control._ATTENTIVE + 1):
            gc.collect(0)
        gc.collect()
        assert watch.taken()[-1].freed_bytes is not None, "a full one is always counted"
    finally:
        patches.take_out()


def test_what_is_kept_in_the_middle_of_a_step_starts_no_collection_and_makes_none_come_earlier() -> None:
    watch, kept = CollectionWatch(lambda: None), list[list[int]]()
    gc.collect()
    before, full = gc.get_count(), gc.get_stats()[0]["collections"]
    keep = watch.gc_neutral(lambda number: kept.append([number]))
    for number in range(2000):
        keep(number)
    assert len(kept) == 2000 and gc.get_stats()[0]["collections"] == full
    assert gc.get_count()[0] == pytest.approx(before[0], abs=30)
