"""How many bytes has the allocator handed out? Read often, so it must cost next to nothing."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass

from leakscope.capture.device.accelerator import Accelerator, find, read_figures
from leakscope.originals import open_file, os
from leakscope.shield import Block, PureBlock, nothing


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
        return int(info.uordblks + info.hblkhd) + _of_arrow()

    return "mallinfo2", live


def _of_arrow() -> int:
    """Bytes of pyarrow's own allocator, which glibc does not see: those of its tables, and of datasets."""
    arrow = sys.modules.get("pyarrow")
    count, pool = getattr(arrow, "total_allocated_bytes", None), getattr(arrow, "default_memory_pool", None)
    if count is None or pool is None:  # not there, or still being imported
        return 0
    return 0 if pool().backend_name == "system" else int(count())


def _resident() -> int | None:
    with open_file("/proc/self/statm", "rb", buffering=0) as stream:
        return int(stream.read(128).split()[1]) * os.sysconf("SC_PAGE_SIZE")


_MAX_LEFT = 512 * 1024
"""Bytes that a look may leave in malloc's caches: at most 425 KiB were measured."""


class Counter:
    """Reads the accelerator's allocator once the script has put it to use, and the host's until then."""

    def __init__(self) -> None:
        self.source, self._host = host_counter()
        self._ours = 0
        self._accelerator: Accelerator | None = None
        self._used = False
        self.fullest = "cpu"
        """The one device, `cuda:1`, whose own peak was highest at the last reading; `cpu` where the host is counted."""

    @property
    def device(self) -> str:
        """`cuda`, `xpu`, ... or `cpu`: where the counted bytes are."""
        return self.source if self._used else "cpu"

    def read(self) -> Counted:
        """Counted bytes now."""
        device = self._accelerator = self._accelerator or find()
        counted = None if device is None else read_figures(device)
        if device is None or not (counted or self._used):  # one that a library has only woken up holds nothing to count
            host = self._host()
            return Counted(None if host is None else host - self._ours)
        self.source, self._used = device.kind, True
        if not counted:  # emptied, and its peak set back
            return Counted(None if counted is None else 0, None if counted is None else 0)
        self.fullest = f"{device.kind}:{max(counted, key=lambda f: f.peak).device}"
        return Counted(sum(f.allocated for f in counted), sum(f.peak for f in counted))

    def ours(self, most: int = _MAX_LEFT) -> PureBlock[None]:
        """What the host's count rises by while the block runs, `most` bytes of it, is left out of later readings.

        It is leakscope's own doing: a look lets everything go, and still glibc keeps about 230 KiB of small blocks for
        reuse (tcache) in every thread that has looked, and counts them as in use. More than that, or less than nothing,
        is what threads of C++ have allocated or freed meanwhile: a collective that was under way.
        """
        before, known = self._host(), self._ours

        def leave() -> None:
            after = self._host()
            if before is not None and after is not None:
                self._ours = known + min(max(after - before, 0), most)

        return Block(nothing, leave)
