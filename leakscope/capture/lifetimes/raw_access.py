"""Uses of a tensor's memory that pass by the dispatcher: numpy, `tolist`, a raw pointer, a storage that is resized."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

READS = ("tolist",)
"""Methods of a tensor that read its memory once."""
HANDS_OUT = ("numpy", "__array__", "__dlpack__", "data_ptr")
"""Methods after which others read and write the memory, and nobody can tell when."""


class UnseenUses:
    """Stands before these methods while a step is watched; what they do and return is not touched."""

    def __init__(
        self, used: Callable[[Any], None], handed_out: Callable[[Any], None], resized: Callable[[Any], None]
    ) -> None:
        self._calls: list[tuple[Any, str, Callable[[Any], None], bool]] = [
            (torch.Tensor, name, used, False) for name in READS
        ]
        self._calls += [(torch.Tensor, name, handed_out, False) for name in HANDS_OUT]
        self._calls.append((torch.UntypedStorage, "resize_", resized, True))
        self._put: list[tuple[Any, str, Any, Any]] = []

    def enter(self) -> None:
        for owner, name, tell, after in self._calls:
            original = getattr(owner, name)
            wrapper = _told(original, tell, after)
            self._put.append((owner, name, vars(owner).get(name), wrapper))
            setattr(owner, name, wrapper)

    def leave(self) -> None:
        """Take them out; one that somebody has wrapped since stays below and only passes on."""
        for owner, name, before, wrapper in self._put:
            if vars(owner).get(name) is not wrapper:
                continue
            if before is None:  # it was inherited from the class in C
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._put.clear()


def _told(original: Any, tell: Callable[[Any], None], after: bool) -> Any:
    @functools.wraps(original)
    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not after:
            tell(self)
            if has_torch_function((self,)):  # a mode or subclass hears of torch's own method, as it would without us
                return handle_torch_function(original, (self,), self, *args, **kwargs)
            return original(self, *args, **kwargs)
        result = original(self, *args, **kwargs)
        tell(self)
        return result

    return wrapper
