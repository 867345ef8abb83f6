"""Which saved tensors does the weight pass still need? With `droppable_saves()` around the forward, only those stay.

Autograd frees a node's saved tensors when a backward that frees the graph runs it. A split backward runs its input pass
with the graph kept, so every saved tensor below an intermediate lives on until its weights are done, also those that
only the input's gradient needed. Saved inside this context, a tensor sits behind a small handle that the input pass
can empty.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import Node, saved_tensors_hooks

from .boxed import drop_boxed
from .check import saved_names
from .payloads import TENSOR, UNKNOWN, payload_of


class SavedHandle:
    """One tensor saved by the forward, with the version it had."""

    __slots__ = ("__weakref__", "_layout", "_tensor", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A handle with the tensor itself would hold an output's own grad node, a cycle that is never freed. detach()
        # shares the storage and the version counter and holds no graph.
        self._tensor: torch.Tensor | None = tensor.detach()
        self._version = tensor._version
        self._layout: tuple[Any, ...] = ()

    def drop(self) -> None:
        """Let go of the tensor; only what it looked like is kept."""
        if self._tensor is not None:
            self._layout = (self._tensor.shape, self._tensor.dtype, self._tensor.device)
            self._tensor = None

    def tensor(self) -> torch.Tensor:
        """The tensor as it was saved. Raises RuntimeError where it was changed in place or dropped."""
        if self._tensor is None:
            if _stand_ins_allowed:
                shape, dtype, device = self._layout
                return torch.zeros((), dtype=dtype, device=device).expand(shape)
            raise RuntimeError(
                f"a tensor of shape {tuple(self._layout[0])} saved by the stage's forward was released by its input "
                "pass; run the forward again to run the input pass again"
            )
        # Saved-tensor hooks switch off autograd's own version check.
        if self._tensor._version != self._version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self._tensor.shape)} that the stage's forward saved for backward was "
                "changed in place afterwards "
                f"(it is at version {self._tensor._version}, expected version {self._version})"
            )
        return self._tensor


_handles_alive: weakref.WeakSet[Any] = weakref.WeakSet()
_stand_ins_allowed: list[bool] = []


class _Forward:
    """One `droppable_saves` block; alive as long as a handle saved in it is."""

    __slots__ = ("__weakref__",)


class _Packed(SavedHandle):
    __slots__ = ("_forward",)

    def __init__(self, tensor: torch.Tensor, forward: _Forward) -> None:
        super().__init__(tensor)
        self._forward = forward


def _unpack(handle: SavedHandle) -> torch.Tensor:
    return handle.tensor()


@contextmanager
def droppable_saves() -> Iterator[None]:
    """Around a stage's forward: let the input pass of a split backward free what only it needed.

    Gradients are unchanged. A saved tensor that is changed in place before backward is an error in one sentence. The
    innermost saved-tensor hooks win in torch, so what a checkpoint or offloading context saves inside stays with it.

    >>> import torch
    >>> from leakscope.backward import droppable_saves, stage_backward
    >>> stage, x = torch.nn.Linear(4, 8), torch.randn(2, 4, requires_grad=True)
    >>> with droppable_saves():
    ...     outputs = [stage(x).tanh()]
    >>> stage_backward(outputs, [torch.ones(2, 8)], [x])[0].shape
    torch.Size([2, 4])
    """
    forward = _Forward()
    _handles_alive.add(forward)

    def pack(tensor: torch.Tensor) -> SavedHandle:
        return _Packed(tensor, forward)

    with saved_tensors_hooks(pack, _unpack):
        yield


@contextmanager
def stand_ins() -> Iterator[None]:
    """While weights that sit on several intermediates run together, dropped tensors answer with zeros.

    What is computed from them is thrown away: every intermediate below is given its captured gradient.
    """
    _stand_ins_allowed.append(True)
    try:
        yield
    finally:
        _stand_ins_allowed.pop()


def any_handles() -> bool:
    """Is there a tensor behind a handle anywhere?"""
    return len(_handles_alive) > 0


def drop_saved(nodes: Iterable[Node]) -> None:
    """Empty the handles of nodes that will not run again."""
    look = any_handles()
    for node in nodes:
        if isinstance(node, torch._C._FunctionBase):
            drop_boxed(node)
        if not look:
            continue
        for name in saved_names(type(node)):
            saved = getattr(node, name)
            for variable in saved if isinstance(saved, tuple) else (saved,):
                handle = payload_of(variable)
                if isinstance(handle, SavedHandle):
                    handle.drop()


def packed_by(node: Node) -> str:
    """The module of the payload that saved-tensor hooks put into a node, '' where none did; checkpointing's, whose
    nodes need most care, where this torch does not tell.
    """
    for name in saved_names(type(node)):
        saved = getattr(node, name)
        for variable in saved if isinstance(saved, tuple) else (saved,):
            payload = payload_of(variable)
            if payload is None:
                continue
            if payload is UNKNOWN:
                return "torch.utils.checkpoint"
            return "" if payload is TENSOR or isinstance(payload, torch.Tensor) else type(payload).__module__
    return ""
