"""The C and Python heap readers return the same arrays for any heap."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from support.heap_readers import differences

from leakscope import native
from leakscope.heap import sweep

pytestmark = pytest.mark.skipif(native.gc_heap() is None, reason="no native heap reader")


class Box:
    """Holds anything as attributes."""


def test_an_untracked_tuple_is_read_once_however_many_hold_it() -> None:
    """Two to the power of sixty ways lead down through these tuples."""
    leading: Any = (np.ones(2),)
    leading_nowhere: Any = (1.5,)
    gc.collect(0)
    for _ in range(60):
        leading, leading_nowhere = (leading, leading), (leading_nowhere, leading_nowhere)
        gc.collect(0)
    assert not gc.is_tracked(leading)
    objects: list[Any] = [[leading, leading_nowhere], [leading_nowhere]]
    assert differences(objects) == []
    assert len(sweep.read_natively(objects, False).untracked) == 61 + 1


def test_what_was_frozen_is_read_too() -> None:
    held = [{"box": Box()}, [np.ones(2)]]
    objects = [[held]]
    gc.freeze()
    try:
        with_frozen = sweep.read_natively(objects, True).untracked
        assert [id(obj) for obj in with_frozen[:3]] == [id(held), id(held[1]), id(held[0])]
        assert differences(objects) == []
    finally:
        gc.unfreeze()
