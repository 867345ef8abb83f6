"""Numpy arrays, bytes and BytesIO: their memory is counted with the tensors' in host memory, and leaks like theirs."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    sweep = native.sweep
    untracked = np.arange(sweep.tracked, len(sweep.objects))
    kinds = np.unique(sweep.type_index[untracked])
    owning = np.array([_may_own(type(sweep.objects[k])) for k in sweep.type_first[kinds].tolist()], dtype=bool)
    places = untracked[np.isin(sweep.type_index[untracked], kinds[owning])]
    places = np.union1d(places, native.of_type(BytesIO))
    places = places[refcounts.unexplained[places] == 0]
    owned = {k: owned_bytes(sweep.objects[k]) for k in places.tolist()}
    large = np.array([k for k, size in owned.items() if size >= LARGE], dtype=np.int64)
    return {k: owned[k] for k in large[~_of_earlier_looks(native, refcounts, large)].tolist()}


def _of_earlier_looks(native: NativeReferences, refcounts: RefcountTable, places: Ints) -> NDArray[np.bool_]:
    """Which of these a HeapGraph has, by itself or by its dict: `check` keeps its looks until it judges them."""
    graphs, dicts = (np.flatnonzero(native.sweep.type_list == id(kind)) for kind in (HeapGraph, dict))
    kinds = native.sweep.type_index
    into = refcounts.into(places)
    of_dicts = refcounts.into(np.unique(into.holder[np.isin(kinds[into.holder], dicts)]))
    of_graphs = of_dicts.held[np.isin(kinds[of_dicts.holder], graphs)]
    kept = np.isin(kinds[into.holder], graphs) | np.isin(into.holder, of_graphs)
    return np.isin(places, into.held[kept])


def _may_own(kind: type) -> bool:
    return kind is bytes or kind is bytearray or kind is BytesIO or np.ndarray in mro(kind)


def owned_bytes(obj: Any) -> int:
    """Bytes of memory that the object itself allocated, 0 for what is none of these or holds objects."""
    kind = type(obj)
    if kind is bytes or kind is bytearray or kind is BytesIO:
        return sys.getsizeof(obj)
    if (
        np.ndarray not in mro(kind)
        or _OF_ARRAY["dtype"].__get__(obj).hasobject
        or not _OF_ARRAY["flags"].__get__(obj).owndata
    ):
        return 0
    return int(_OF_ARRAY["nbytes"].__get__(obj))
