"""Which line made this storage? Watched for one warm-up step, under a dispatch mode of torch."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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

    def enter(self) -> str:
        """Watch from here on; returns the reason when that cannot be done without changing what runs, else ""."""
        if torch._C._len_torch_dispatch_stack() > 0:
            return "where tensors are made was not watched: the script runs under a dispatch mode of its own"
        if _compiles():
            # a dispatch mode makes compiled callables run eager (measured on torch 2.13)
            return "where tensors are made was not watched: the script uses torch.compile, which watching would switch off"
        self._mode = _watching_mode(self._note)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return ""

    def leave(self) -> bool:
        """Stop watching; False while a mode of the script's own stands above ours and must not be popped."""
        if self._mode is None:
            return True
        stack = torch._C._len_torch_dispatch_stack()
        if stack == 0 or torch._C._get_dispatch_stack_at(stack - 1) is not self._mode:
            return False
        self._mode.__exit__(None, None, None)
        self._mode = None
        return True

    def forget(self) -> None:
        """Drop every entry."""
        self._entries.clear()

    def _note(self, out: object, operator: str) -> None:
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if type(tensor) in Tensors and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if storage._cdata not in self._entries:
                    self._add(storage, operator)

    def _add(self, storage: torch.UntypedStorage, operator: str) -> None:
        address, entries = storage._cdata, self._entries

        def gone(reference: weakref.ref[Any]) -> None:
            if address in entries and entries[address][0] is reference:
                del entries[address]

        line = users_line(sys._getframe(3))
        node = torch._C._current_autograd_node()
        inside = operator if node is None else f"{operator} in {node.name()}"
        entries[address] = (weakref.ref(storage, gone), f"{line} ({inside})" if line else inside)


def _watching_mode(note: Callable[[object, str], None]) -> TorchDispatchMode:
    class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            note(out, func.name().partition(".")[0])
            return out

    return Watching()  # type: ignore[no-untyped-call]


def _compiles() -> bool:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("frames"))
