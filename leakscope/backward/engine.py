"""How is torch's engine called with little in between?

``torch.autograd.backward`` and ``grad`` look at each argument in several ways before they call it; on a small stage
that is a tenth of the whole. What comes here was looked at before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import GradientEdge

from .edges import OutputEdge

_run: Any = getattr(graph, "_engine_run_backward", None)
_transforms_active = torch._C._are_functorch_transforms_active
_PLAIN = frozenset({Tensor, torch.nn.Parameter, GradientEdge, OutputEdge})
"""What no ``__torch_function__`` is asked about."""

Grads = tuple[Tensor | None, ...]


def accumulate(
    starts: Sequence[Any], grads: Sequence[Tensor], retain_graph: bool = False, ends: Sequence[Any] = ()
) -> None:
    """As ``torch.autograd.backward``, for starts and gradients of the same shapes; into all leaves without `ends`."""
    starts, ends, grads = tuple(starts), tuple(ends), tuple(grads)
    if _direct(starts, ends):
        _run(starts, grads, retain_graph, False, ends, True, accumulate_grad=True)
    else:
        torch.autograd.backward(starts, grads, retain_graph=retain_graph, inputs=ends or None)


def differentiate(starts: Sequence[Any], grads: Sequence[Tensor], ends: Sequence[Any], retain_graph: bool) -> Grads:
    """As ``torch.autograd.grad``, for starts and gradients of the same shapes; None for an end that is not reached."""
    if not starts or not ends:
        return (None,) * len(ends)
    starts, ends, grads = tuple(starts), tuple(ends), tuple(grads)
    if not _direct(starts, ends):
        return torch.autograd.grad(starts, ends, grads, retain_graph=retain_graph, allow_unused=True)
    arrived: Grads = _run(starts, grads, retain_graph, False, ends, True, accumulate_grad=False)
    return arrived


def _direct(starts: Sequence[Any], ends: Sequence[Any]) -> bool:
    """Whether no start or end has a ``__torch_function__``, and no transform is active, that torch would ask first."""
    for one in starts:
        if type(one) not in _PLAIN:
            return False
    for one in ends:  # in loops: a generator costs more than the rest of it
        if type(one) not in _PLAIN:
            return False
    return _run is not None and not _transforms_active()
