"""Listings of gc-tracked objects keep nothing alive after their release."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

from leakscope.heap import _sweep_fallback
from leakscope.heap import sweep as module
from leakscope.heap.sweep import listed


class Thing:
    pass


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("generations", [(), (0, 1)])
def test_what_was_listed_dies_with_its_last_owner(
    generations: tuple[int, ...], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list among what it lists itself would be garbage that holds all of that."""
    monkeypatch.setattr(module, "is_alone", lambda: alone)
    gc.disable()
    try:
        thing = Thing()
        objects, addresses = listed(*generations)
        assert any(obj is thing for obj in objects) and id(thing) in addresses
        gone = weakref.ref(thing)
        del thing, objects
        assert gone() is None
    finally:
        gc.enable()


def test_what_lists_in_the_presence_of_threads_holds_nothing_of_what_is_listed() -> None:
    """The reader's own iterators are among the objects; they would be taken for garbage that holds memory."""
    thing = object()
    last = [thing]
    before = sys.getrefcount(thing)
    columns = _sweep_fallback.read(lambda: [*gc.get_objects(0), last], False, alone=False)
    assert any(type(obj) is map for obj in columns.objects)
    assert sys.getrefcount(thing) == before
