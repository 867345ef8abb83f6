"""Who keeps a list's tensors alive during a call? With boxed lists, nobody: the callee empties them.

Python holds every argument of a call until the call returns, so a tensor handed over in a tuple cannot be freed inside
it. A *list* can be emptied by the callee; AOTAutograd calls that convention boxed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

from .check import Roots
from .edges import OutputEdge, flatten, owner_of

_LEAVES = (torch.Tensor, GradientEdge, type(None))


def _flat(values: Any) -> bool:
    """The everyday case, a list of tensors."""
    return type(values) is list and all(isinstance(value, _LEAVES) for value in values)


def require_lists(what: str, values: Any) -> None:
    """Refuse containers that cannot be emptied. Raises TypeError naming the place."""
    if _flat(values):
        return
    for item in flatten(values, None):
        if isinstance(item.value, torch.Tensor) and not isinstance(item.owner, (list, dict)):
            kind = "bare tensor" if item.owner is None else type(item.owner).__name__
            raise TypeError(f"boxed=True takes lists (or dicts) it can empty, but {what} holds {item.name} in a {kind}")


def empty(values: Any) -> None:
    """Empty every list and dict of a nested container, so that nobody who still holds it holds a tensor."""
    if _flat(values):
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


class Delivery:
    """Hands each output gradient to the engine at the moment its node runs, and then lets go of it.

    The engine keeps the gradients it is started with until it is done. So it is started with placeholders of one
    element, and a pre-hook on each output's own view node puts the real gradient in their place.
    """

    def __init__(self, roots: Roots, late: bool) -> None:
        self.starts = roots.starts
        self.grads: list[torch.Tensor] = []
        self._handles: list[Any] = []
        for start, grad in zip(roots.starts, roots.grads, strict=True):
            handed_late = late and isinstance(start, OutputEdge) and not grad.is_nested  # which has no other sizes
            if handed_late:
                self._handles.append(start.node.register_prehook(_hand_over([grad])))
            self.grads.append(grad.new_zeros(()).expand(grad.shape) if handed_late else grad)

    def close(self) -> None:
        """Take the hooks out; their gradients go with them where the engine never came that far."""
        while self._handles:
            self._handles.pop().remove()


def _hand_over(box: list[torch.Tensor]) -> Any:
    def hand_over(_placeholders: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (box.pop(),)

    return hand_over


def merge_duplicates(roots: Roots) -> Roots:
    """One start per edge: the gradients of an output that is listed twice are summed.

    So each start's node meets exactly one gradient, which `Delivery` relies on.
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


def take_roots(roots: Roots) -> Roots:
    """The same roots without their output tensors: each tensor is replaced by its edge."""
    merged = merge_duplicates(roots)
    starts = [owner_of(start) for start in merged.starts]
    return Roots(starts, merged.grads, [(edge.node, edge.output_nr) for edge in starts])


_BOX = "saved_box"


class SavedBox:
    """The tensors a custom Function saved, in one place that its backward can empty."""

    __slots__ = ("_entries", "_taken", "last")

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        # detach() shares storage and version counter but not the graph: an output kept with its grad_fn would hold
        # the node that holds the box, a cycle no collector sees.
        self._entries = [(tensor.detach(), tensor._version) for tensor in tensors]
        self._taken = False
        self.last = False
        """Whether the next to take them is the last one, though the engine keeps the graph."""

    def drop(self) -> None:
        """Let go of the tensors for good."""
        self._entries.clear()
        self._taken = True

    def take(self, keep: bool) -> list[torch.Tensor]:
        """The tensors in a list that belongs to the caller; the box is empty afterwards unless `keep`."""
        if self._taken:
            raise RuntimeError(
                "the tensors saved for this backward were already taken or released; "
                "run the forward again, or keep the graph with retain_graph=True"
            )
        for position, (tensor, version) in enumerate(self._entries):
            if tensor._version != version:
                raise RuntimeError(
                    f"saved tensor {position} of shape {tuple(tensor.shape)} was changed in place after the forward "
                    f"saved it (version {tensor._version}, expected {version})"
                )
        tensors = [tensor for tensor, _ in self._entries]
        if self.last or not keep:
            self.drop()
        return tensors


def save_boxed(ctx: Any, *tensors: torch.Tensor) -> None:
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


def take_boxed(ctx: Any) -> list[torch.Tensor]:
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

    Raises:
        RuntimeError: a tensor was changed in place since, or the box is empty.

    """
    box: SavedBox = getattr(ctx, _BOX)
    return box.take(torch._C._autograd._get_current_graph_task_keep_graph())


def box_of(node: Node) -> SavedBox | None:
    """What a custom Function's node saved with `save_boxed`."""
    box = getattr(node, _BOX, None)
    return box if isinstance(box, SavedBox) else None
