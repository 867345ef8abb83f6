"""Boxed calls: the callee empties the list it is given, so that nothing keeps its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .check import Roots, handed_late
from .edges import OutputEdge

_LEAVES = (Tensor, GradientEdge, type(None))


def empty(values: Any) -> None:
    """Empty every list and dict of a nested container, so that other references to it keep no tensor."""
    if isinstance(values, list):
        for value in values:
            if not isinstance(value, _LEAVES):
                break
        else:  # the common case
            values.clear()
            return
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, GradientEdge) or not isinstance(value, (list, tuple, Mapping)):
            continue
        pending.extend(value.values() if isinstance(value, Mapping) else value)
        if isinstance(value, (list, dict)):
            value.clear()


def deliver_late(roots: Roots) -> tuple[list[Tensor], list[Any]]:
    """Roots to start the engine with, so that each output gradient arrives when its node runs.

    The engine keeps the gradients it is started with until it is done. It is therefore started with placeholders of one
    element, and a pre-hook on each output's own view node replaces them by the real gradients. Remove the returned
    hooks afterwards; they hold the gradients that the engine did not reach.
    """
    grads, hooks = [*roots.grads], []
    for place, start in enumerate(roots.starts):
        if type(start) is OutputEdge and handed_late(grads[place]):
            hooks.append(start.node.register_prehook(_hand_over([(grads[place],)])))
            grads[place] = _placeholder(grads[place])
    return grads, hooks


def _placeholder(grad: Tensor) -> Tensor:
    if type(grad) is Tensor:
        return torch.empty_strided(grad.shape, (0,) * grad.dim(), dtype=grad.dtype, device=grad.device)
    return grad.new_zeros(()).expand(grad.shape)


def _hand_over(box: list[tuple[Tensor]]) -> Any:
    def hand_over(_placeholders: tuple[Tensor, ...]) -> tuple[Tensor]:
        return box.pop()

    return hand_over


def check_version(name: str, tensor: Tensor, version: int) -> None:
    """Raise RuntimeError if a saved tensor was changed in place, as autograd does for its own."""
    if tensor._version != version:
        raise RuntimeError(
            f"{name} of shape {tuple(tensor.shape)} was changed in place after the forward saved it (version "
            f"{tensor._version}, expected {version})"
        )


_BOX = "saved_box"


class SavedBox:
    """The tensors a custom Function saved, in one place that its backward can empty."""

    __slots__ = ("_entries", "_taken", "last")

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        # detach() shares storage and version counter but not the graph: keeping an output with its grad_fn would
        # hold the node that holds the box, a cycle that no collector sees.
        self._entries = [(tensor.detach(), tensor._version) for tensor in tensors]
        self._taken = False
        self.last = False
        """Whether the next call is the last one, although the engine keeps the graph."""

    def drop(self) -> None:
        """Release the tensors for good."""
        self._entries.clear()
        self._taken = True

    def take(self, keep: bool) -> list[Tensor]:
        """Return the tensors in a list owned by the caller; the box is emptied unless `keep`."""
        if self._taken:
            raise RuntimeError(
                "the tensors saved for this backward were already taken or released; "
                "run the forward again, or keep the graph with retain_graph=True"
            )
        for position, (tensor, version) in enumerate(self._entries):
            check_version(f"saved tensor {position}", tensor, version)
        tensors = [tensor for tensor, _ in self._entries]
        if self.last or not keep:
            self.drop()
        return tensors


def save_boxed(ctx: Any, *tensors: Tensor) -> None:
    """Save tensors in a custom Function's forward so that its backward can free each one before it returns.

    ``ctx.save_for_backward`` keeps them until the whole backward of the node has returned, and a list on ``ctx`` keeps
    them until the node dies. Use `take_boxed` in backward.

    >>> import torch
    >>> from leakscope.backward import save_boxed, take_boxed
    >>> class Square(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         save_boxed(ctx, x)
    ...         return x * x
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         saved = take_boxed(ctx)
    ...         return 2 * saved.pop() * grad    # from here on nothing of ours holds x
    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> Square.apply(x).backward()
    >>> x.grad
    tensor([6.])

    Args:
        ctx: the Function's own context, as its forward has it.
        tensors: what backward needs, of any shape.

    """
    setattr(ctx, _BOX, SavedBox(tensors))


def take_boxed(ctx: Any) -> list[Tensor]:
    """The list saved with `save_boxed`. It belongs to the caller: clear it, or hand it to a boxed callee.

    While the engine keeps the graph (``retain_graph=True``) the box stays filled; not so in the input pass of a split
    backward, where the node does not run again in the weight pass.

    >>> import torch
    >>> from leakscope.backward import save_boxed, take_boxed
    >>> class Scale(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x, factor):
    ...         save_boxed(ctx, factor)
    ...         return x * factor
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return grad * take_boxed(ctx).pop(), None
    >>> x = torch.ones(2, requires_grad=True)
    >>> Scale.apply(x, torch.tensor(3.0)).sum().backward()
    >>> x.grad
    tensor([3., 3.])

    Args:
        ctx: the Function's own context, as its backward has it.

    Returns:
        The saved tensors, in the order and of the shapes in which they were saved.

    Raises:
        RuntimeError: A tensor was changed in place since, or the box is empty.

    """
    box: SavedBox = getattr(ctx, _BOX)
    return box.take(torch._C._autograd._get_current_graph_task_keep_graph())


def box_of(node: Node) -> SavedBox | None:
    """What a custom Function's node saved with `save_boxed`."""
    box = getattr(node, _BOX, None)
    return box if isinstance(box, SavedBox) else None
