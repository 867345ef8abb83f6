"""The parts in C give what the Python parts give, refuse what they cannot take, and keep nothing of either."""

from __future__ import annotations

import numpy as np
import pytest
from support import native_fuzz

from leakscope import native

needs_c = pytest.mark.skipif(
    None in (native.gc_heap(), native.walks(), native.untraced()), reason="the parts in C were not built"
)


@needs_c
@pytest.mark.parametrize("kind", dict.fromkeys(native_fuzz.ROUNDS), ids=lambda kind: kind.__name__)
def test_a_few_seeded_rounds_find_nothing(kind: native_fuzz.Round) -> None:
    for seed in range(15):
        kind(native_fuzz.Random(seed))


@needs_c
def test_columns_that_are_not_aligned_or_not_flat_are_refused() -> None:
    walks = native.walks()
    unaligned = memoryview(bytearray(17))[1:].cast("i")
    flat = np.zeros(4, dtype=np.int32)
    for column in (unaligned, flat.reshape(2, 2), np.array(0, dtype=np.int32)):
        with pytest.raises(ValueError):
            walks.rows(1, column, column)
    assert walks.rows(1, flat, flat)
    book = native.gc_heap().read([[1]], np.ndarray, (), 1, 1 << 30, 0, 0, 1)["book"]
    for addresses in (memoryview(bytearray(17))[1:].cast("q"), flat, b"12345678"):
        with pytest.raises(ValueError):
            book.find(addresses)


@needs_c
def test_the_last_reference_to_a_call_may_go_while_it_runs() -> None:
    def lets_go() -> list[int]:
        held.clear()
        return [1]

    held = [native.untraced().Call(lets_go)]
    assert held[0]() == [1] and not held
