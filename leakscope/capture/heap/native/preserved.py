"""Which Python objects of tensors and storages does C++ own, in a torch where it takes them over from Python?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.native.raw_memory import Words
from leakscope.capture.heap.python.address_book import Ints
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.torch_older import COUNTS_IN_PYTHON, give_back_storage, give_back_tensor
from leakscope.capture.torch_private import TensorBase, address_of_storage, address_of_tensor, uses_of_storage

_IMPL = 24
"""Words read of a TensorImpl or StorageImpl; the pointer to the Python object lies well within."""
_TAKEN_OVER = 1
"""The bit of that pointer that says that C++ owns the Python object (c10/core/impl/PyObjectSlot.h)."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Tensors and storages whose Python object C++ owned when the heap was swept; none where torch counts."""

    indexes: Ints

    def python_references(self, asked: NDArray[Any], uses: Ints) -> NDArray[np.bool_]:
        """Whether C++ had a Python reference to each of these, which have so many owners."""
        return uses > 1 if COUNTS_IN_PYTHON else np.isin(asked, self.indexes)


def taken_over(indexes: Ints, objects: Iterable[Any], words: Words) -> TakenOver:
    """Those of some tensors and storages, told by their indexes, whose Python object C++ owns.

    It gives them up: an object that C++ owns and lets go while somebody holds it is left without a tensor.
    """
    if COUNTS_IN_PYTHON:
        return TakenOver(np.zeros(0, dtype=np.int64))
    return TakenOver(indexes[[_take_back(obj, words) for obj in objects]])


def _take_back(obj: Any, words: Words) -> bool:
    tensor = TensorBase in mro(type(obj))
    if not tensor and is_gone(obj):
        return True
    address = int(address_of_storage(obj) if not tensor else address_of_tensor(obj))
    taken = id(obj) | _TAKEN_OVER in words(address, _IMPL)
    if taken:
        (give_back_tensor if tensor else give_back_storage)(obj)
    return taken


def is_gone(storage: Any) -> bool:
    """Whether a storage's memory is: up to torch 2.9 its Python object stays while anything refers to it weakly."""
    return not COUNTS_IN_PYTHON and not uses_of_storage(int(address_of_storage(storage)))
