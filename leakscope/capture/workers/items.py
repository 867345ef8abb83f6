"""How many bytes have the newest items of a container, tensors and arrays among them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from leakscope.capture.heap.native.autograd import Role, Types
from leakscope.capture.heap.objects.sizes import Measure
from leakscope.capture.heap.python.referents import items_of
from leakscope.capture.heap.python.untracked import LARGE
from leakscope.capture.heap.raw_types import container_base, instance_dict, mro
from leakscope.capture.torch_private import TensorBase, without_functions

_DEEPEST = 3
"""Containers in each other that are looked into, chosen."""
_MOST = 64
"""Items of each that are looked at, chosen."""
_NBYTES: Any = np.ndarray.__dict__["nbytes"]


def bytes_of(items: Sequence[tuple[Any, ...]]) -> int:
    """Bytes of these items together: of tensors their storages, of arrays their data, and of Python objects."""
    types = Types()
    found: dict[int, int] = {}
    for item in items:
        for part in item:
            for obj in _parts(part, _DEEPEST):
                found[id(obj)] = _data_bytes(obj, types)
    measure = Measure(types)
    measure.add([part for item in items for part in item])
    return sum(found.values()) + round(measure.taken()[0])


def _parts(obj: Any, deep: int) -> Iterator[Any]:
    """The object and what containers and records in it hold."""
    yield obj
    kind = type(obj)
    base = tuple if kind is tuple else container_base(kind)
    inner: Any = ()
    if deep and base is not None:
        inner = dict.values(obj) if base is dict else items_of(obj) if base is tuple else base.__iter__(obj)
    elif deep and (attributes := instance_dict(obj, kind)) is not None:
        inner = attributes.values()
    for part in list(islice(inner, _MOST)):
        yield from _parts(part, deep - 1)


def _data_bytes(obj: Any, types: Types) -> int:
    """Bytes that `Measure` leaves to others: of tensors and arrays, and of large blocks of bytes."""
    kind = type(obj)
    if types.role(kind) is Role.TENSOR:
        with without_functions():
            return int(TensorBase.untyped_storage(obj).nbytes())
    if np.ndarray in mro(kind):
        size = int(_NBYTES.__get__(obj))
    else:
        size = len(obj) if kind is bytes or kind is bytearray else 0
    return size if size >= LARGE else 0
