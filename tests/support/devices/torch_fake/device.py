"""`torch.fake`: those calls of `torch.cuda` that scripts and leakscope make."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch_fake import _C, memory
from torch_fake.memory import max_memory_allocated, max_memory_reserved, memory_allocated

__all__ = ["max_memory_allocated", "max_memory_reserved", "memory", "memory_allocated"]

TOTAL = 80 << 30
_queued_calls: list[tuple[Callable[[], None], list[str]]] = []
_used_in: int | None = None
_being_used = threading.local()


def is_initialized() -> bool:
    return _used_in == os.getpid()


def _lazy_call(call: Callable[[], None]) -> None:
    if is_initialized():
        call()
    else:
        _queued_calls.append((call, []))


def use() -> None:
    """What the first tensor on the device does: torch.cuda's `_lazy_init` makes the waiting calls in its middle."""
    global _used_in  # noqa: PLW0603 - torch asks the module
    if is_initialized() or hasattr(_being_used, "now"):
        return
    _being_used.now = True
    try:
        _C.start()
        for call, _ in _queued_calls:
            call()
    finally:
        del _being_used.now
    _used_in = os.getpid()


def is_available() -> bool:
    return True


def device_count() -> int:
    return int(_C.devices)


def current_device() -> int:
    return int(_C.current())


def set_device(device: Any) -> None:
    _C.set_current(memory.index_of(device))


def synchronize(device: Any = None) -> None:
    pass


def get_device_properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(total_memory=TOTAL)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    _C.set_limit(memory.index_of(device), int(fraction * TOTAL))


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    """The fake device draws nothing itself: operators that do are the CPU's."""
