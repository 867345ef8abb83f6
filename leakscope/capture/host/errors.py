"""Did an allocation fail, how much was wanted, and by whom?"""

from __future__ import annotations

import re
from typing import Any

from leakscope.capture.heap.raw_types import mro
from leakscope.capture.source.user_frames import raised_at

_WANTED = re.compile(r"you tried to allocate (\d+) bytes")
_WANTED_ON_DEVICE = re.compile(r"[Tt]ried to allocate ([\d.]+) ([KMGT]?i?B)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def failure(error: BaseException | None) -> dict[str, Any] | None:
    """What is known of an uncaught allocation failure; None for any other error.

    On CPU torch raises a plain RuntimeError (c10/core/impl/alloc_cpu.cpp), on an accelerator torch.OutOfMemoryError.
    One that the script caught is not seen.
    """
    if error is None:
        return None
    text = str(error) if type(error) is RuntimeError or _is_oom(error) else ""
    on_host = "DefaultCPUAllocator" in text and "allocate memory" in text
    if not (on_host or _is_oom(error)):
        return None
    return {
        "error": text.splitlines()[0] if text else type(error).__name__,
        "wanted_bytes": _wanted(text),
        "at": raised_at(error),
    }


def _is_oom(error: BaseException) -> bool:
    return any(kind.__name__ in ("OutOfMemoryError", "MemoryError") for kind in mro(type(error)))


def _wanted(text: str) -> int | None:
    if match := _WANTED.search(text):
        return int(match[1])
    if match := _WANTED_ON_DEVICE.search(text):
        return int(float(match[1]) * _UNITS.get(match[2], 1))
    return None
