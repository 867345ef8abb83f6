"""Does a listing of what gc knows hold nothing once it is let go of?"""

from __future__ import annotations

import gc
import weakref

import pytest

from leakscope.capture.heap.python import listed as module
from leakscope.capture.heap.python.listed import listed


class Thing:
    pass


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("generations", [(), (0,), (0, 1)])
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
