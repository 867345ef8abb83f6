"""Does the script use its gradients without its optimizer?"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from leakscope.capture.heap.raw_types import mro
from leakscope.capture.private_names import Part, lacks
from leakscope.capture.schedule.optimizers import OptimizerClock, parameters
from leakscope.capture.torch_private import grad_of, version_of, without_functions

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Gradients:
    """Were the optimizers' gradients dealt with between two backwards, while no optimizer stepped?

    Accumulating leaves them as they are: then neither the tensor nor its version changes before the next backward.
    """

    def __init__(self, optimizers: OptimizerClock) -> None:
        self._optimizers = optimizers
        self._seen: tuple[weakref.ref[Any], int, int] | None = None
        """A parameter, the address of its gradient, and the gradient's version."""
        self._parameter: tuple[weakref.ref[Any], int, int] | None = None
        """A parameter, the address of its memory, and its version."""

    def backward_ended(self) -> None:
        """Note a gradient that is there now."""
        self._seen = None
        if lacks(Part.BY_HAND):
            return
        with without_functions():
            self._seen = self._first_gradient()

    def _first_gradient(self) -> tuple[weakref.ref[Any], int, int] | None:
        for optimizer in self._optimizers.each():
            for parameter in parameters(optimizer):
                gradient = _gradient(parameter)
                if gradient is not None:
                    return weakref.ref(parameter), id(gradient), version_of(gradient)
        return None

    def parameters_changed(self) -> bool:
        """Whether the optimizers' first parameter has other values than at the last call: an update by hand, where
        torch.autograd.grad gives gradients that no parameter has.
        """
        if lacks(Part.BY_HAND):
            return False
        before, self._parameter = self._parameter, None
        with without_functions():
            for optimizer in self._optimizers.each():
                first = next(
                    (p for p in parameters(optimizer) if type(p) in _PLAIN and p.layout is torch.strided), None
                )
                if first is not None:
                    self._parameter = weakref.ref(first), first.data_ptr(), version_of(first)
                    return before is not None and before[0]() is first and before[1:] != self._parameter[1:]
        return False

    def were_used(self) -> bool:
        """Whether the gradient that the last backward left is gone or changed now."""
        if self._seen is None:
            return False
        reference, address, version = self._seen
        parameter = reference()
        with without_functions():
            gradient = None if parameter is None else _gradient(parameter)
            return gradient is None or id(gradient) != address or version_of(gradient) != version


def _gradient(parameter: Any) -> Any:
    """A parameter's gradient, read past what a class of its own may make of `.grad`; only of torch's plain tensors."""
    if torch.Tensor not in mro(type(parameter)):
        return None
    gradient = grad_of(parameter)
    return gradient if type(gradient) is torch.Tensor else None
