"""The address index finds every object, and listings of gc-tracked objects keep nothing alive."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.heap import _sweep_fallback, address_index
from leakscope.heap import sweep as module
from leakscope.heap.address_index import PagedAddressIndex, addresses_of
from leakscope.heap.sweep import listed

_HEAPS = st.lists(st.integers(1, 1 << 42), unique=True, max_size=60)


@given(_HEAPS, st.lists(st.integers(1, 1 << 47), max_size=20), st.sampled_from([8, 16, 32, 48]))
def test_every_object_is_found_and_nothing_else(places: list[int], elsewhere: list[int], spacing: int) -> None:
    addresses = [place * spacing for place in places]
    index = {address: k for k, address in enumerate(addresses)}
    book = PagedAddressIndex(np.asarray(addresses, dtype=np.int64))
    wanted = [*addresses, *elsewhere, *(address + 8 for address in addresses)]
    expected = [index.get(address, -1) for address in wanted]
    assert book.find(np.asarray(wanted, dtype=np.int64)).tolist() == expected
    assert [book.find_one(address) for address in wanted] == expected


def test_sparse_addresses_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_index, "_TABLE_LIMIT", 1)
    addresses = np.arange(1, 2000, dtype=np.int64) * 7_777_776
    book = PagedAddressIndex(addresses)
    assert book.find(addresses[::-1]).tolist() == list(range(len(addresses)))[::-1]
    assert book.find_one(7_777_776) == 0
    assert book.find_one(7_777_777) == -1


def test_addresses_are_those_of_id() -> None:
    objects = [[], {}, "text", 3, None, [1, [2]], (), object()]
    assert addresses_of(objects, len(objects)).tolist() == list(map(id, objects))
    assert addresses_of(map(type, objects), len(objects)).tolist() == [id(type(obj)) for obj in objects]
    assert addresses_of([], 0).tolist() == []


class Thing:
    pass


@pytest.mark.parametrize("alone", [True, False])
def test_a_listing_keeps_nothing_alive(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list among what it lists itself would be garbage that holds all of that."""
    monkeypatch.setattr(module, "is_alone", lambda: alone)
    gc.disable()
    try:
        thing = Thing()
        objects, addresses = listed(0, 1)
        assert any(obj is thing for obj in objects) and id(thing) in addresses
        gone = weakref.ref(thing)
        del thing, objects
        assert gone() is None
    finally:
        gc.enable()


def test_a_listing_beside_threads_holds_nothing() -> None:
    """The reader's own iterators are among the objects; they would be taken for garbage that holds memory."""
    thing = object()
    last = [thing]
    before = sys.getrefcount(thing)
    columns = _sweep_fallback.read(lambda: [*gc.get_objects(0), last], False, alone=False)
    assert any(type(obj) is map for obj in columns.objects)
    assert sys.getrefcount(thing) == before
