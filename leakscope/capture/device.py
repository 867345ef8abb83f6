"""How many bytes has the allocator handed out? Read often, so it must cost next to nothing."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Counted:
    """One reading."""

    bytes: int | None
    peak: int | None = None
    """The highest count since the accelerator's statistics were last reset; None on CPU, where nobody keeps it."""


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


def host_counter() -> tuple[str, Callable[[], int | None]]:
    """(what it is called, a function that reads it): glibc's count of live malloc bytes, else resident memory.

    Neither is tensor memory alone: only growth says something. 1 to 3 microseconds a call.
    """
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return ("resident memory", _resident) if os.path.exists("/proc/self/statm") else ("nothing", lambda: None)
    mallinfo2.restype = _MallocInfo

    def live() -> int | None:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)

    return "mallinfo2", live


def _resident() -> int | None:
    with open("/proc/self/statm", "rb", buffering=0) as stream:
        return int(stream.read(128).split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Counter:
    """Reads the accelerator's allocator once the script has put it to use, and the host's until then."""

    def __init__(self) -> None:
        self.source, self._host = host_counter()
        self._accelerator: Callable[[], Counted] | None = None

    @property
    def device(self) -> str:
        """`cuda`, `xpu`, `mps` or `cpu`: where the counted bytes are."""
        return "cpu" if self._accelerator is None else self.source

    def read(self) -> Counted:
        """Counted bytes now."""
        if self._accelerator is None:
            found = _accelerator()
            if found is None:
                return Counted(self._host())
            self.source, self._accelerator = found
        return self._accelerator()


def _accelerator() -> tuple[str, Callable[[], Counted]] | None:
    """The accelerator in use; never initialises one that the script has not."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.cuda.is_initialized():
        return "cuda", lambda: _of_cuda(torch)
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_initialized():
        return "xpu", lambda: Counted(int(xpu.memory_allocated()), int(xpu.max_memory_allocated()))
    return None


def _of_cuda(torch: Any) -> Counted:
    # torch.cuda.memory_stats made a reference cycle on every call until pytorch#191441: the C function does not
    current = peak = 0
    for device in range(torch.cuda.device_count()):
        stats: Mapping[str, Any] = torch._C._cuda_memoryStats(device)
        allocated = stats["allocated_bytes"]["all"]
        current += int(allocated["current"])
        peak += int(allocated["peak"])
    return Counted(current, peak)
