"""Checks roots and gradients before a backward runs."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .edges import LISTED, SMALL, OutputEdge, edge_of, flatten, freed, gradient_edge, saved_names


class Roots(NamedTuple):
    """The places backward starts from, and the gradient that enters at each; three lists of equal length."""

    starts: list[Any]
    """Tensors or gradient edges."""
    grads: list[Tensor]
    nodes: list[tuple[Node, int]]


_FLAT = (tuple, list)


def gather_roots(outputs: Any, output_grads: Any, ones: bool = False, boxed: bool = False) -> Roots:
    """Pair every differentiable output with its gradient.

    Outputs that need no gradient are left out, as in torch. An output of one element without a gradient gets ones; with
    `ones`, every output does if no gradients are given. A gradient of another floating dtype is converted, as by the
    engine. With `boxed` each tensor is replaced by its edge. Raises RuntimeError naming the output by position or key
    if it cannot be differentiated, if a gradient is missing or does not fit (shape, dtype, device), or if its graph was
    freed; AssertionError if the containers of outputs and gradients differ; TypeError for tensors that `boxed` finds in
    tuples, which cannot be emptied.
    """
    roots = _gather_plain(outputs, output_grads, boxed)
    if boxed and not (roots and type(outputs) is list and type(output_grads) is list):
        require_lists("stage_output", outputs)
        require_lists("output_grads", output_grads)
    roots = roots or _gather_nested(outputs, output_grads, ones and output_grads is None, boxed)
    return merge_duplicates(roots) if boxed and len(roots.starts) > 1 else roots


def _gather_plain(outputs: Any, output_grads: Any, boxed: bool) -> Roots | None:
    """The common case, matching tensors or edges in a flat list, in as few operations as possible; None for others.

    It runs for each backward of each microbatch: on a small stage every line here is measurable.
    """
    if type(outputs) not in _FLAT or type(output_grads) not in _FLAT or len(outputs) != len(output_grads):
        return None
    starts: list[Any] = []
    nodes = []
    for value, grad in zip(outputs, output_grads, strict=True):
        start = value
        if type(grad) is not Tensor:
            return None
        if type(value) is Tensor:
            node = saving = value.grad_fn
            number = value.output_nr
            fits = value.shape == grad.shape and value.dtype is grad.dtype
            device = value.device
        elif isinstance(value, GradientEdge):
            node, number = value.node, value.output_nr
            saving = node.next_functions[0][0] if type(value) is OutputEdge else node
            made = node._input_metadata[number]
            fits = made.shape == [*grad.shape] and made.dtype is grad.dtype
            device = made.device
        else:
            return None
        if node is None or saving is None or not fits or device != grad.device:
            return None
        names = saved_names(type(saving))
        if names and names[0] != LISTED:
            if getattr(getattr(saving, names[0]), "data", None) is None:
                return None
        elif freed(saving):
            return None
        if boxed and type(value) is Tensor:
            start = edge_of(value, of_its_own=handed_late(grad))
            node, number = start.node, start.output_nr
        starts.append(start)
        nodes.append((node, number))
    return Roots(starts, list(output_grads), nodes)


def require_lists(what: str, values: Any) -> None:
    """Refuse containers that cannot be emptied. Raises TypeError naming the place."""
    for item in flatten(values, None):
        if isinstance(item.value, Tensor) and not isinstance(item.owner, (list, dict)):
            kind = "bare tensor" if item.owner is None else type(item.owner).__name__
            raise TypeError(f"boxed=True takes lists (or dicts) it can empty, but {what} holds {item.name} in a {kind}")


def _gather_nested(outputs: Any, output_grads: Any, ones: bool, boxed: bool) -> Roots:
    starts: list[Any] = []
    grads: list[Tensor] = []
    nodes: list[tuple[Node, int]] = []
    for item in flatten(outputs, output_grads):
        value = item.value
        if item.skipped or not isinstance(value, (Tensor, GradientEdge)):
            continue
        if isinstance(value, Tensor) and not value.requires_grad:
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
    if boxed:
        starts = [
            edge_of(start, of_its_own=handed_late(grad)) if isinstance(start, Tensor) else start
            for start, grad in zip(starts, grads, strict=True)
        ]
        nodes = [(start.node, start.output_nr) for start in starts]
    return Roots(starts, grads, nodes)


def _fitting_grad(name: str, value: Any, node: Node, number: int, grad: Any, ones: bool) -> Tensor:
    start = value if isinstance(value, Tensor) else node._input_metadata[number]
    shape, dtype, device = tuple(start.shape), start.dtype, start.device  # a grad node's metadata may contain a list
    if grad is None:
        if ones and isinstance(value, Tensor):
            return torch.ones_like(value, requires_grad=False)
        if prod(shape) != 1 or not dtype.is_floating_point:
            raise RuntimeError(f"{name} of shape {shape} and {dtype} is no real scalar, so it needs a gradient")
        return torch.ones(shape, dtype=dtype, device=device)
    if not isinstance(grad, Tensor):
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


def _shrunk(node: Node, number: int, grad: Tensor) -> str:
    """Why the shapes differ, if the forward made the output in the shape of its gradient."""
    edges = [(node, number), *node.next_functions][:2]  # an edge made after the shrinking is one view further
    made = [child._input_metadata[nr].shape for child, nr in edges if child is not None]
    if tuple(grad.shape) not in map(tuple, made):
        return ""
    return (
        "; the forward made it in that shape, and its .data was shrunk since (as Megatron's deallocate_output_tensor "
        "does): take output_edges(outputs) right after the forward and drop the outputs instead"
    )


def handed_late(grad: Tensor) -> bool:
    """Whether this output gradient is passed to the engine when its node runs, and not before."""
    if type(grad) is Tensor and grad.untyped_storage().nbytes() <= SMALL:
        return False
    return not grad.is_nested  # without other sizes


def merge_duplicates(roots: Roots) -> Roots:
    """One start per edge: the gradients of an output that is listed twice are summed.

    Each start's node then receives exactly one gradient, which `deliver_late` relies on.
    """
    if len(set(roots.nodes)) == len(roots.nodes):
        return roots
    place: dict[tuple[Node, int], int] = {}
    merged = Roots([], [], [])
    for start, grad, node in zip(roots.starts, roots.grads, roots.nodes, strict=True):
        if node in place:
            merged.grads[place[node]] = merged.grads[place[node]] + grad
            continue
        place[node] = len(merged.starts)
        merged.starts.append(start)
        merged.grads.append(grad)
        merged.nodes.append(node)
    return merged
