"""The heap read by one call of C (`_gc_heap.c`), into arrays that numpy reads where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.python.address_book import Ints, Places
from leakscope.capture.heap.python.columns import MOST_COUNTED, HeapColumns, Listing, UntrackedDicts
from leakscope.capture.heap.python.untracked import HANDLES, LARGE
from leakscope.native import gc_heap
from leakscope.originals import FROZEN_BY_PYTHON, gc

_PLACES = ("type_index", "type_first", "counts", "lengths", "starts", "holder", "held", "arrays")
_ADDRESSES = ("addresses", "type_list", "firsts")


class NativeBook:
    """Finds the index of a tracked object by its address."""

    __slots__ = ("_book",)

    def __init__(self, book: Any) -> None:
        self._book = book

    def find(self, addresses: Ints) -> Places:
        """Index of each address, -1 where no object stands there."""
        return _array(self._book.find(np.ascontiguousarray(addresses, dtype=np.int64)), np.int32)

    def find_one(self, address: int) -> int:
        """Index of one address, -1 where no object stands there."""
        place: int = self._book.find_one(address)
        return place


def read(objects: list[Any] | Listing, with_dicts: bool, *, alone: bool = True) -> HeapColumns:
    """All that a sweep asks of these objects, or of what `gc.get_objects` lists, as `pure_reader.read` gives it.

    Where this thread is not `alone`, a tuple that no other object holds is not held either, but a copy of it.
    `MemoryError` where there is too little of it; nothing is kept then.
    """
    freezing = gc.get_freeze_count() > FROZEN_BY_PYTHON
    columns = gc_heap().read(objects, np.ndarray, HANDLES, LARGE, MOST_COUNTED, freezing, with_dicts, alone)
    holders = _array(columns["dict_holder"], np.int32).astype(np.int64)
    of_dicts = (_array(columns[f"dict_{name}"], np.int64) for name in ("address", "length", "first"))
    return HeapColumns(
        **{name: _array(columns[name], np.int32) for name in _PLACES},
        **{name: _array(columns[name], np.int64) for name in _ADDRESSES},
        objects=columns["objects"],
        untracked=columns["untracked"],
        dicts=UntrackedDicts(holders, *of_dicts),
        book=NativeBook(columns["book"]),
        let_go=dict(
            zip(
                _array(columns["let_go"], np.int64).tolist(),
                _array(columns["let_go_at"], np.int32).tolist(),
                strict=True,
            )
        ),
    )


def _array(column: Any, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """The numbers of a column, which lives as long as the array."""
    return np.frombuffer(column, dtype=dtype) if memoryview(column).nbytes else np.zeros(0, dtype=dtype)
