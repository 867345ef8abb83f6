"""Uses of a tensor's memory that pass by the dispatcher: numpy, `tolist`, a raw pointer, a storage that is resized."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from leakscope.capture.process.guard import Guard
from leakscope.capture.process.patches import Patches

READS = ("tolist",)
"""Methods of a tensor that read its memory once."""
HANDS_OUT = ("numpy", "__array__", "__dlpack__", "data_ptr")
"""Methods after which others read and write the memory, and nobody can tell when."""


class RawAccess:
    """Stands before these methods while a step is watched; what they do and return is not touched."""

    def __init__(
        self, used: Callable[[Any], None], handed_out: Callable[[Any], None], resized: Callable[[Any], None]
    ) -> None:
        self._calls: list[tuple[Any, str, Callable[[Any], None], bool]] = [
            (torch.Tensor, name, used, False) for name in READS
        ]
        self._calls += [(torch.Tensor, name, handed_out, False) for name in HANDS_OUT]
        self._calls.append((torch.UntypedStorage, "resize_", resized, True))

    def enter(self, patches: Patches) -> None:
        """Stand before them from here on."""
        for owner, name, report, after in self._calls:
            if after:
                patches.call_after(owner, name, partial(_returned, report))
            else:
                patches.wrap(owner, name, partial(_reporting, patches.guard, f"Tensor.{name}", report))


def _returned(report: Callable[[Any], None], _: object, self: Any, *__: Any, **___: Any) -> None:
    report(self)


def _reporting(guard: Guard, name: str, report: Callable[[Any], None], original: Any) -> Any:
    report, deaf = guard.entry(name, report), guard.deaf

    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not deaf:
            try:
                report(self)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                guard.fault(name, error)
        if has_torch_function((self,)):  # a mode or subclass hears of torch's own method, as it would without us
            return handle_torch_function(original, (self,), self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return wrapper
