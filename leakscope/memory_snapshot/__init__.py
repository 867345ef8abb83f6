"""Reads and analyses the snapshots of torch's allocator.

`examine` (verdict.py) does all of it: `reader` loads a file as plain data (`model`), `replay` computes what was alive
after each event, `sites` and `analysis` attribute the memory, `growth`, `peak` and `oom` explain it, `verdict` judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.memory_snapshot.reader import read_bytes, read_snapshots
    from leakscope.memory_snapshot.verdict import examine

_MODULE_OF = {
    "examine": "leakscope.memory_snapshot.verdict",
    "read_bytes": "leakscope.memory_snapshot.reader",
    "read_snapshots": "leakscope.memory_snapshot.reader",
}
"""Imported on first use: a rank takes `DeviceLayout` from here before the script runs, and must not load numpy then."""

__all__ = ["DeviceLayout", "examine", "read_bytes", "read_snapshots"]


@dataclass(frozen=True)
class DeviceLayout:
    """How the memory of one device is used."""

    device: int
    reserved: int
    active: int
    allocated: int
    pending: int
    rounding: int
    stuck: int
    private: int
    """Reserved by pools other than the default one."""


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'leakscope.memory_snapshot' has no attribute {name!r}")
    found: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found  # where the import has put the module of that name
    return found
