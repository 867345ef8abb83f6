"""What leakscope allocates does not decide when the program's garbage goes."""

from __future__ import annotations

import gc

import pytest

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
