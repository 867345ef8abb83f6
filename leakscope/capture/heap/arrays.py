"""Numpy arrays, bytes and BytesIO: their memory is counted with the tensors' in host memory, and leaks like theirs."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np

from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.python.untracked import LARGE
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.heap.refcounts import RefcountTable
from leakscope.graph.model import HeapGraph, Ints

_OF_ARRAY: Any = np.ndarray.__dict__


def arrays_of(native: NativeReferences, refcounts: RefcountTable) -> dict[int, int]:
    """Index of each that owns LARGE bytes or more of memory that nobody else has, with how many.

    One that native code holds as well is left out: `torch.from_numpy` keeps the array for as long as the tensor
    (torch/csrc/utils/tensor_numpy.cpp), and the tensor's storage is that memory already.
    """
    objects, types = native.sweep.objects, native.sweep.types
    mine = np.zeros(refcounts.count, dtype=bool)
    mine[np.arange(native.sweep.tracked, len(objects))] = True
    mine[np.flatnonzero(types == id(io.BytesIO))] = True
    mine[refcounts.unexplained > 0] = False
    mine[_of_earlier_looks(types, refcounts)] = False
    owned = {k: owned_bytes(objects[k]) for k in np.flatnonzero(mine).tolist()}
    return {k: size for k, size in owned.items() if size >= LARGE}


def _of_earlier_looks(types: Ints, refcounts: RefcountTable) -> Ints:
    """What a HeapGraph has, by itself or by its dict: `check` keeps its looks until it judges them."""
    types = np.append(types, np.zeros(refcounts.count - refcounts.objects, np.int64))
    looks = types == id(HeapGraph)
    dicts = np.zeros(refcounts.count, dtype=bool)
    dicts[refcounts.held[looks[refcounts.holder]]] = True
    dicts &= types == id(dict)
    held: Ints = refcounts.held[looks[refcounts.holder] | dicts[refcounts.holder]]
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
