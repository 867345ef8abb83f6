"""Numpy arrays, bytes and BytesIO: their memory is counted with the tensors' in host memory, and leaks like theirs."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np

from leakscope.capture.heap.gc_heap import LARGE
from leakscope.capture.heap.native_references import Explorer
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.heap.refcounts import Account
from leakscope.graph.model import HeapGraph, Ints

_OF_ARRAY: Any = np.ndarray.__dict__


def arrays_of(found: Explorer, books: Account) -> dict[int, int]:
    """Index of each that owns LARGE bytes or more of memory that nobody else has, with how many.

    One that native code holds as well is left out: `torch.from_numpy` keeps the array for as long as the tensor
    (torch/csrc/utils/tensor_numpy.cpp), and the tensor's storage is that memory already.
    """
    objects, types = found.sweep.objects, found.sweep.types
    mine = np.zeros(books.count, dtype=bool)
    mine[np.arange(found.sweep.tracked, len(objects))] = True
    mine[np.flatnonzero(types == id(io.BytesIO))] = True
    mine[books.unexplained > 0] = False
    mine[_of_earlier_looks(types, books)] = False
    owned = {k: owned_bytes(objects[k]) for k in np.flatnonzero(mine).tolist()}
    return {k: size for k, size in owned.items() if size >= LARGE}


def _of_earlier_looks(types: Ints, books: Account) -> Ints:
    """What a HeapGraph has, by itself or by its dict: `check` keeps its looks until it judges them."""
    types = np.append(types, np.zeros(books.count - books.objects, np.int64))
    looks = types == id(HeapGraph)
    dicts = np.zeros(books.count, dtype=bool)
    dicts[books.held[looks[books.holder]]] = True
    dicts &= types == id(dict)
    held: Ints = books.held[looks[books.holder] | dicts[books.holder]]
    return held


def owned_bytes(obj: Any) -> int:
    """Bytes of memory that the object itself allocated, 0 for what is none of these or holds objects."""
    kind = type(obj)
    if kind is bytes or kind is bytearray or kind is io.BytesIO:
        return sys.getsizeof(obj)
    if (
        np.ndarray not in mro(kind)
        or _OF_ARRAY["dtype"].__get__(obj).hasobject
        or not _OF_ARRAY["flags"].__get__(obj).owndata
    ):
        return 0
    return int(_OF_ARRAY["nbytes"].__get__(obj))
