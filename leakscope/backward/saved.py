"""Which saved tensors does the weight pass still need? With `droppable_saves()` around the forward, only those stay.

Autograd frees a node's saved tensors when a backward that frees the graph runs it. A split backward runs its input pass
with the graph kept, so every saved tensor below an intermediate lives on until its weights are done, also those that
only the input's gradient needed. Saved inside this context, a tensor sits behind a small handle, which gives it away
for good when the input pass runs its node.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FunctionType
from typing import Any

import torch
from torch.autograd.graph import Node, saved_tensors_hooks

from .boxed import SavedBox, box_of
from .payloads import TENSOR, UNKNOWN, payload_of, saved_names, unpack_hook_of


class SavedHandle:
    """One tensor saved by the forward, with the version it had."""

    __slots__ = ("__weakref__", "_shape", "_tensor", "_version", "last")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A handle with the tensor itself would hold an output's own grad node, a cycle that is never freed. detach()
        # shares the storage and the version counter and holds no graph.
        self._tensor: torch.Tensor | None = tensor.detach()
        self._version = tensor._version
        self._shape: tuple[int, ...] = ()
        self.last = False
        """Whether the next to ask is the last one, so that nothing of ours holds the tensor while its node runs."""

    def drop(self) -> None:
        """Let go of the tensor; only what it looked like is kept."""
        if self._tensor is not None:
            self._shape = tuple(self._tensor.shape)
            self._tensor = None

    def tensor(self) -> torch.Tensor:
        """The tensor as it was saved. Raises RuntimeError where it was changed in place or dropped."""
        if self._tensor is None:
            raise RuntimeError(
                f"a tensor of shape {self._shape} saved by the stage's forward was released by its input "
                "pass; run the forward again to run the input pass again"
            )
        # Saved-tensor hooks switch off autograd's own version check.
        if self._tensor._version != self._version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self._tensor.shape)} that the stage's forward saved for backward was "
                "changed in place afterwards "
                f"(it is at version {self._tensor._version}, expected version {self._version})"
            )
        tensor = self._tensor
        if self.last:
            self.drop()
        return tensor


_handles_alive: weakref.WeakSet[Any] = weakref.WeakSet()


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


def any_handles() -> bool:
    """Is there a tensor behind a handle anywhere?"""
    return len(_handles_alive) > 0


@contextmanager
def dropping(nodes: Iterable[Node]) -> Iterator[None]:
    """While the input pass runs, let go of what `nodes`, which will not run again, have saved: each as it runs.

    A node of torch's own unpacks what it saved once, a custom Function's backward as often as it likes.
    """
    look = any_handles()
    saved: list[SavedHandle | SavedBox] = []
    last: list[SavedHandle | SavedBox] = []
    hooks: list[Any] = []
    for node in nodes:
        own = _saved_by(node) if look else []
        saved += own
        if not isinstance(node, torch._C._FunctionBase):
            last += own
            continue
        if own:
            hooks.append(node.register_hook(_drop(own)))
        if box := box_of(node):
            last.append(box)
            saved.append(box)
    for one in last:
        one.last = True
    try:
        yield
        for one in saved:  # of nodes that nothing has reached
            one.drop()
    finally:
        for hook in hooks:
            hook.remove()
        for one in last:
            one.last = False


def _drop(saved: list[Any]) -> Any:
    def drop(_inputs: Any, _outputs: Any) -> None:
        for one in saved:
            one.drop()

    return drop


def _saved_by(node: Node) -> list[Any]:
    """The handles in which `droppable_saves` has put what a node saved."""
    return [handle for one in _variables(node) if isinstance(handle := payload_of(one), SavedHandle)]


def _variables(node: Node) -> Iterator[Any]:
    """What a node saved, each as torch shows it without running unpack hooks."""
    for name in saved_names(type(node)):
        saved = getattr(node, name)
        yield from saved if isinstance(saved, tuple) else (saved,)


def by_checkpoint(node: Node, once: bool = False) -> bool:
    """Whether a checkpoint recomputes what a node saved; also said where this torch does not tell.

    With `once`, whether one that has contexts of its own does, as selective checkpointing: they may be entered once.
    """
    for variable in _variables(node):
        payload = payload_of(variable)
        if payload is None:
            continue
        if payload is UNKNOWN:
            return not once
        if payload is TENSOR or isinstance(payload, torch.Tensor):
            return False
        checkpoints = type(payload).__module__.startswith("torch.utils.checkpoint")
        return checkpoints and (not once or _recomputed_in(unpack_hook_of(variable)) is not None)
    return False


def _recomputed_in(unpack: Any) -> Any:
    """The context that a checkpoint recomputes in, None where it has none (torch/utils/checkpoint.py)."""
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
