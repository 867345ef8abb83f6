"""Which values are tensors or hold some, and which tensors are alive?"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any

import torch

from leakscope.capture.heap.native.storages import TensorBase
from leakscope.capture.heap.raw_types import mro

OTHER, PLAIN, TENSOR, SEQUENCE = range(4)
"""What a value is, by its type: plain numbers, for every argument of every operation is asked."""


def kind_of(kind: type) -> int:
    """PLAIN (torch's own tensor or parameter), TENSOR (of another type), SEQUENCE (a list or tuple) or OTHER, of the
    values of a type.
    """
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return PLAIN
    bases = mro(kind)
    if TensorBase in bases:
        return TENSOR
    return SEQUENCE if list in bases or tuple in bases else OTHER


class Kinds(dict[type, int]):
    """As `kind_of`, each type asked once."""

    def __missing__(self, kind: type) -> int:
        known = self[kind] = kind_of(kind)
        return known


def each_tensor(value: Any, kinds: Kinds, take: Callable[[Any], None]) -> None:
    """Hand on the tensors of a value, at whatever depth of lists and tuples."""
    kind = kinds[type(value)]
    if kind in (PLAIN, TENSOR):
        take(value)
    elif kind == SEQUENCE:
        for item in value:
            each_tensor(item, kinds, take)


def tensors_alive() -> Iterator[Any]:
    """Every tensor gc knows, and the gradients that may live in C++ alone."""
    objects = gc.get_objects()
    # without a step of Python's for each of some hundred thousand objects
    types = {kind for kind in set(map(type, objects)) if kind_of(kind) in (PLAIN, TENSOR)}
    for obj in compress(objects, map(types.__contains__, map(type, objects))):
        yield obj
        if TensorBase.is_leaf.__get__(obj) and TensorBase.requires_grad.__get__(obj):
            grad = TensorBase.grad.__get__(obj)
            if grad is not None:
                yield grad
