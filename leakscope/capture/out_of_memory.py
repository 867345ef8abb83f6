"""Did an allocation fail, and what held the memory then?"""

from __future__ import annotations

import os
import re
import resource
from types import TracebackType
from typing import Any

from leakscope.capture.source import at, is_users

NEAR = 0.9
"""Share of the host's limit from which a process is looked at."""
_WANTED = re.compile(r"you tried to allocate (\d+) bytes")
_WANTED_ON_DEVICE = re.compile(r"[Tt]ried to allocate ([\d.]+) ([KMGT]?i?B)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def failure(error: BaseException | None) -> dict[str, Any] | None:
    """What is known of an uncaught allocation failure; None for any other error.

    On CPU torch raises a plain RuntimeError (c10/core/impl/alloc_cpu.cpp), on an accelerator torch.OutOfMemoryError. One
    that the script caught is not seen.
    """
    if error is None:
        return None
    text = str(error) if type(error) is RuntimeError or _is_oom(error) else ""
    on_host = "DefaultCPUAllocator" in text and "allocate memory" in text
    if not (on_host or _is_oom(error)):
        return None
    return {"error": text.splitlines()[0] if text else type(error).__name__, "wanted_bytes": _wanted(text), "at": _place(error)}


def _is_oom(error: BaseException) -> bool:
    return any(kind.__name__ in ("OutOfMemoryError", "MemoryError") for kind in type.__dict__["__mro__"].__get__(type(error)))


def _wanted(text: str) -> int | None:
    if found := _WANTED.search(text):
        return int(found[1])
    if found := _WANTED_ON_DEVICE.search(text):
        return int(float(found[1]) * _UNITS.get(found[2], 1))
    return None


def _place(error: BaseException) -> str:
    """`train.py:41 forward`: the innermost line of the user's in the traceback."""
    place = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            place = f"{at(code.co_filename, trace.tb_lineno)} {code.co_name}"
        trace = trace.tb_next
    return place


class HostLimit:
    """Says once that the process has come near to the memory it may have."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = host_limit() if limit is None else limit
        self._said = False

    def reached(self) -> bool:
        """True the first time that resident memory is at `NEAR` of the limit or above."""
        if self._said or not self.limit:
            return False
        self._said = _resident() >= NEAR * self.limit
        return self._said


def _resident() -> int:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as stream:
            return int(stream.read(128).split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def host_limit() -> int:
    """Bytes of host memory this process may have: the control group's, the rlimit's or the machine's; 0 where none is known."""
    found = [os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as stream:
                found.append(int(stream.read()))
        except (OSError, ValueError):  # no control group, or `max`
            continue
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft = resource.getrlimit(kind)[0]
        if soft != resource.RLIM_INFINITY:
            found.append(soft)
    return min(found)
