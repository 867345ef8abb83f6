"""Can this backward run at all? Asked of every root and gradient before anything runs."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, Node

from .edges import flatten, gradient_edge
from .payloads import payload_of


class Roots(NamedTuple):
    """The places backward starts from, and the gradient that enters at each; three lists of equal length."""

    starts: list[Any]
    """Tensors or gradient edges."""
    grads: list[torch.Tensor]
    nodes: list[tuple[Node, int]]


def gather_roots(outputs: Any, output_grads: Any, ones: bool = False) -> Roots:
    """Pair every differentiable output with its gradient.

    Outputs that need no gradient are left out, as in torch. An output of one element with no gradient gets ones, and
    so does, with `ones`, every output where no gradients are given. A gradient of another floating dtype is converted,
    as by the engine. Raises RuntimeError naming the output by position or key where it cannot be differentiated, where
    a gradient is missing or does not fit (shape, dtype, device), or where its graph was freed; AssertionError where the
    containers of outputs and gradients differ.
    """
    plain = _gather_plain(outputs, output_grads)
    return plain or _gather_nested(outputs, output_grads, ones and output_grads is None)


def _gather_plain(outputs: Any, output_grads: Any) -> Roots | None:
    """The everyday case, a flat list of fitting tensors, in as few steps as can be; None where anything is unusual."""
    kinds = (tuple, list)
    if type(outputs) not in kinds or type(output_grads) not in kinds or len(outputs) != len(output_grads):
        return None
    nodes = []
    for value, grad in zip(outputs, output_grads, strict=True):
        if not isinstance(value, torch.Tensor) or not isinstance(grad, torch.Tensor):
            return None
        node = value.grad_fn
        if node is None or value.shape != grad.shape or value.dtype != grad.dtype or value.device != grad.device:
            return None
        names = saved_names(type(node))
        if not names or names[0] == _LISTED or getattr(getattr(node, names[0]), "data", None) is None:
            return None
        nodes.append((node, value.output_nr))
    return Roots(list(outputs), list(output_grads), nodes)


def _gather_nested(outputs: Any, output_grads: Any, ones: bool) -> Roots:
    starts: list[Any] = []
    grads: list[torch.Tensor] = []
    nodes: list[tuple[Node, int]] = []
    for item in flatten(outputs, output_grads):
        value = item.value
        if item.skipped or not isinstance(value, (torch.Tensor, GradientEdge)):
            continue
        if isinstance(value, torch.Tensor) and not value.requires_grad:
            if item.owner is None and item.grad is not None:
                raise RuntimeError(f"{item.name} needs no gradient (requires_grad is False) but was given one")
            continue
        node, number = gradient_edge(value)
        starts.append(value)
        grads.append(_fitting_grad(item.name, value, node, number, item.grad, ones))
        nodes.append((node, number))
        if freed(node):
            raise RuntimeError(
                f"{item.name} belongs to a graph that was freed by an earlier backward; "
                "run the stage's forward again, or keep the graph with retain_graph=True"
            )
    return Roots(starts, grads, nodes)


def _fitting_grad(name: str, value: Any, node: Node, number: int, grad: Any, ones: bool) -> torch.Tensor:
    start = value if isinstance(value, torch.Tensor) else node._input_metadata[number]
    shape, dtype, device = tuple(start.shape), start.dtype, start.device  # a grad node's metadata gives a list
    if grad is None:
        if ones and isinstance(value, torch.Tensor):
            return torch.ones_like(value, requires_grad=False)
        if prod(shape) != 1 or not dtype.is_floating_point:
            raise RuntimeError(f"{name} of shape {shape} and {dtype} is no real scalar, so it needs a gradient")
        return torch.ones(shape, dtype=dtype, device=device)
    if not isinstance(grad, torch.Tensor):
        raise AssertionError(f"the gradient of {name} must be a tensor or None, not a {type(grad).__name__}")
    if tuple(grad.shape) != shape:
        why = _shrunk(node, number, grad)
        raise RuntimeError(f"{name} has shape {shape} but its gradient has shape {tuple(grad.shape)}{why}")
    if grad.device != device:
        raise RuntimeError(f"{name} is on {device} but its gradient is on {grad.device}")
    if grad.dtype == dtype:
        return grad
    if grad.is_complex() != dtype.is_complex or not (grad.is_floating_point() or grad.is_complex()):
        raise RuntimeError(f"{name} is {dtype} but its gradient is {grad.dtype}; convert the gradient first")
    return grad.to(dtype)


def _shrunk(node: Node, number: int, grad: torch.Tensor) -> str:
    """Why the shapes differ, where the forward made the output in the shape of its gradient."""
    edges = [(node, number), *node.next_functions][:2]  # an edge made after the shrinking is one view further up
    made = [child._input_metadata[nr].shape for child, nr in edges if child is not None]
    if tuple(grad.shape) not in map(tuple, made):
        return ""
    return (
        "; the forward made it in that shape, and its .data was shrunk since (as Megatron's deallocate_output_tensor "
        "does): take output_edges(outputs) right after the forward and drop the outputs instead"
    )


_LISTED = "_raw_saved_tensors"
"""How a custom Function's node lists what it saved; it raises once that was freed."""


@cache
def saved_names(kind: type) -> tuple[str, ...]:
    """The names under which a type of grad node shows its saved tensors without running unpack hooks."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def freed(start: Node) -> bool:
    """True where an earlier backward freed what the first nodes below `start` saved. Runs no unpack hook.

    Looks down to the first node on each path that saved anything; a graph freed only further down still fails in
    the engine.
    """
    seen = {start}
    pending = [start]
    while pending:
        node = pending.pop()
        names = saved_names(type(node))
        if not names:
            children = [child for child, _ in node.next_functions if child is not None and child not in seen]
            seen.update(children)
            pending.extend(children)
        elif _emptied(node, names):
            return True
    return False


def _emptied(node: Node, names: tuple[str, ...]) -> bool:
    empty = 0
    for name in names:
        try:
            entry = getattr(node, name)
        except RuntimeError:  # a custom Function's freed buffers refuse to be listed
            return True
        for variable in entry if isinstance(entry, tuple) else (entry,):
            if payload_of(variable) is not None:
                return False
            empty += 1
    if not empty:
        return False
    # A freed and a never defined saved tensor both read None; only the checked access tells them apart. No hook holds
    # a payload here, so none runs.
    try:
        getattr(node, names[0].replace("_raw_saved_", "_saved_"), None)
    except RuntimeError:
        return True
    return False
