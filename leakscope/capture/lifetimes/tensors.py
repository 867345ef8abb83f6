"""Which values are tensors or hold some, and which tensors are alive?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from leakscope.capture.heap.python.listed import objects_listed
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.torch_private import TensorBase

OTHER, TENSOR, SEQUENCE = range(3)
"""What a value is, by its type: plain numbers, for every argument of every operation is asked."""


def kind_of(kind: type) -> int:
    """TENSOR, SEQUENCE (a list or tuple) or OTHER, of the values of a type."""
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
    if kind == TENSOR:
        take(value)
    elif kind == SEQUENCE:
        for item in value:
            each_tensor(item, kinds, take)


def tensors_alive() -> Iterator[Any]:
    """Every tensor gc knows, and the gradients that may live in C++ alone."""
    kinds = Kinds()
    for obj in objects_listed():
        if kinds[type(obj)] == TENSOR:
            yield obj
            if TensorBase.is_leaf.__get__(obj) and TensorBase.requires_grad.__get__(obj):
                grad = TensorBase.grad.__get__(obj)
                if grad is not None:
                    yield grad
