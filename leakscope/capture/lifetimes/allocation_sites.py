"""Which line made this storage?

Watched for one warm-up step, under a dispatch mode of torch; more comes from the lifetimes.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from leakscope.capture.lifetimes.dispatch_mode import (
    Tensors,
    caller_of_operation,
    enter,
    makes_memory,
    name_of,
    watching_mode,
    why_not,
)
from leakscope.capture.process.patches import Patches
from leakscope.capture.source.user_frames import users_line, waiting
from leakscope.capture.torch_private import address_of_storage, node_running
from leakscope.originals import _thread


class _StorageRef(weakref.ref[Any]):
    """Of a storage whose maker is known."""

    __slots__ = ("address",)
    address: int


class AllocationSites:
    """Who made the storages of a few steps: entered and left at step boundaries, holds no storage alive."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._entries: dict[int, tuple[_StorageRef, str]] = {}
        self._died = patches.guard.callback("death of a storage whose maker is known", self._gone)
        self._mode: Any = None
        self._home = 0

    @property
    def watching(self) -> bool:
        """Whether the mode is on."""
        return self._mode is not None

    @property
    def made_at(self) -> Mapping[int, str]:
        """Address of each storage still alive to `train.py:41 forward (aten::addmm)`."""
        return {address: text for address, (_, text) in self._entries.items()}

    def enter(self, compile_called: bool) -> str:
        """Watch from here on; returns the reason when that cannot be done without changing what runs, else ""."""
        reason = why_not(compile_called)
        if reason:
            return f"where tensors are made was not watched: {reason}"
        self._home = _thread.get_ident()
        self._mode = watching_mode(self._note, self._patches.guard)
        enter(self._mode, self._patches)
        return ""

    def leave(self) -> bool:
        """Stop watching; False while a mode of the script's own stands above ours and must not be popped."""
        if self._mode is None:
            return True
        if not self._patches.take_out():
            return False
        self._mode = None
        return True

    def forget(self) -> None:
        """Drop every entry."""
        self._entries.clear()

    def know(self, storage: torch.UntypedStorage, made_at: str) -> None:
        """Note who made this storage."""
        reference = _StorageRef(storage, self._died)
        reference.address = address_of_storage(storage)
        self._entries[reference.address] = reference, made_at

    def _gone(self, reference: _StorageRef) -> None:
        entries = self._entries
        if reference.address in entries and entries[reference.address][0] is reference:
            del entries[reference.address]

    def _note(self, func: Any, args: object, kwargs: object, out: object) -> None:
        del args, kwargs
        if not makes_memory(func):
            return
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if type(tensor) in Tensors and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if address_of_storage(storage) not in self._entries:
                    self._add(storage, name_of(func))

    def _add(self, storage: torch.UntypedStorage, operator: str) -> None:
        node = node_running()
        above = caller_of_operation()
        line = users_line(waiting(self._home) if above is None and node is not None else above)
        inside = operator if node is None else f"{operator} in {node.name()}"
        self.know(storage, f"{line} ({inside})" if line else inside)
