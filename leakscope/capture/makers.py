"""Which line made this storage? Watched for one warm-up step, under a dispatch mode of torch."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.capture.dispatching import left, name_of, watching_mode, why_not
from leakscope.capture.lines import users_line

Tensors = (torch.Tensor, torch.nn.Parameter)


class Makers:
    """Who made the storages of one step: entered and left at step boundaries, holds no storage alive."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._mode: TorchDispatchMode | None = None

    @property
    def watching(self) -> bool:
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
        self._mode = watching_mode(self._note)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return ""

    def leave(self) -> bool:
        """Stop watching; False while a mode of the script's own stands above ours and must not be popped."""
        if self._mode is None:
            return True
        if not left(self._mode):
            return False
        self._mode = None
        return True

    def forget(self) -> None:
        """Drop every entry."""
        self._entries.clear()

    def _note(self, func: Any, args: object, kwargs: object, out: object) -> None:
        del args, kwargs
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if type(tensor) in Tensors and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if storage._cdata not in self._entries:
                    self._add(storage, name_of(func))

    def _add(self, storage: torch.UntypedStorage, operator: str) -> None:
        address, entries = storage._cdata, self._entries

        def gone(reference: weakref.ref[Any]) -> None:
            if address in entries and entries[address][0] is reference:
                del entries[address]

        line = users_line(sys._getframe(2).f_back)  # autograd's threads have no frame above the mode's own
        node = torch._C._current_autograd_node()
        inside = operator if node is None else f"{operator} in {node.name()}"
        entries[address] = (weakref.ref(storage, gone), f"{line} ({inside})" if line else inside)
