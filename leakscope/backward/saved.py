"""Drops saved tensors that the weight pass does not need, in forwards under `droppable_saves()`."""

from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator, nullcontext, suppress
from types import FunctionType
from typing import Any

import torch
from torch.autograd.graph import Node, saved_tensors_hooks

from .boxed import SavedBox, box_of, check_version
from .edges import variables


class SavedHandle:
    """One tensor saved by the forward, with its version."""

    __slots__ = ("_shape", "_tensor", "_version", "last")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A handle with the tensor itself would hold an output's own grad node, a cycle that is never freed. detach()
        # shares the storage and the version counter and holds no graph.
        self._tensor: torch.Tensor | None = tensor.detach()
        self._version = tensor._version
        self.last = False
        """Whether the next access is the last one, so that the handle does not hold the tensor while its node runs."""

    def drop(self) -> None:
        """Release the tensor; only its metadata is kept."""
        if self._tensor is not None:
            self._shape = tuple(self._tensor.shape)
            self._tensor = None

    def tensor(self) -> torch.Tensor:
        """The tensor as it was saved. Raises RuntimeError if it was changed in place or dropped."""
        tensor = self._tensor
        if tensor is None:
            raise RuntimeError(
                f"a tensor of shape {self._shape} saved by the stage's forward was released by its input "
                "pass; run the forward again to run the input pass again"
            )
        check_version("a saved tensor", tensor, self._version)  # saved-tensor hooks switch off autograd's own check
        if self.last:
            self.drop()
        return tensor


class _Saving(ContextDecorator, saved_tensors_hooks):
    """A `droppable_saves` block. Each tensor saved in it passes through here, so the hooks are the handle's methods."""

    ever = False
    """Whether there has been one, so that there may be handles."""


def droppable_saves() -> AbstractContextManager[None]:
    """Around a stage's forward: let the input pass of a split backward free what only it needed.

    Gradients are unchanged. A saved tensor that is changed in place before backward is an error in one sentence. The
    innermost saved-tensor hooks win in torch, so what a checkpoint or offloading context saves inside stays with it.

    Returns:
        A context manager around the forward.

    >>> import torch
    >>> from leakscope.backward import droppable_saves, stage_backward
    >>> stage, x = torch.nn.Linear(4, 8), torch.randn(2, 4, requires_grad=True)
    >>> with droppable_saves():
    ...     outputs = [stage(x).tanh()]
    >>> stage_backward(outputs, [torch.ones(2, 8)], [x])[0].shape
    torch.Size([2, 4])

    """
    _Saving.ever = True
    return _Saving(SavedHandle, SavedHandle.tensor)


def any_handles() -> bool:
    """Whether there may be a tensor behind a handle."""
    return _Saving.ever


class Dropping:
    """During the input pass, releases what nodes that will not run again have saved, each when it runs.

    A node of torch unpacks what it saved once, a custom Function's backward any number of times.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._saved: list[SavedHandle | SavedBox] = []
        self._last: list[SavedHandle | SavedBox] = []
        self._hooks: list[Any] = []
        has_handles = any_handles()
        for node in nodes:
            own: list[Any] = []
            if has_handles:
                own = [held for one in variables(node) if isinstance(held := one.data, SavedHandle)]
            self._saved += own
            if not isinstance(node, torch._C._FunctionBase):
                self._last += own
                continue
            if own:
                self._hooks.append(node.register_hook(_drop(own)))
            if box := box_of(node):
                self._last.append(box)
                self._saved.append(box)
        for one in self._last:
            one.last = True

    def drop(self) -> None:
        """Release all of it, including what nodes saved that were not reached."""
        for one in self._saved:
            one.drop()

    def close(self) -> None:
        """Remove the hooks; what was not dropped stays."""
        for hook in self._hooks:
            hook.remove()
        for one in self._last:
            one.last = False


def _drop(saved: list[Any]) -> Any:
    def drop(_inputs: Any, _outputs: Any) -> None:
        for one in saved:
            one.drop()

    return drop


def by_checkpoint(node: Node, once: bool = False) -> bool:
    """Whether a checkpoint recomputes what a node saved.

    With `once`, whether one with its own contexts does, such as selective checkpointing: they may be entered only once.
    """
    for variable in variables(node):
        payload = variable.data
        if payload is None:
            continue
        if isinstance(payload, torch.Tensor):
            return False
        checkpoints = type(payload).__module__.startswith("torch.utils.checkpoint")
        return checkpoints and (not once or _recomputed_in(variable.unpack_hook) is not None)
    return False


def _recomputed_in(unpack: Any) -> Any:
    """The context in which a checkpoint recomputes, None without one (torch/utils/checkpoint.py)."""
    cells = _cells(unpack)
    inner = _cells(cells.get("unpack_hook"))
    frame = cells.get("frame") or inner.get("frame")
    context = _cells(getattr(frame, "recompute_fn", None)).get("recompute_context")
    return None if isinstance(context, nullcontext) else context


def _cells(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(function, FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                found[name] = cell.cell_contents
    return found
