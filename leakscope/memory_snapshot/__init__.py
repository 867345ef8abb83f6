"""Reads and analyses the snapshots of torch's allocator.

`examine` does all of it. Its parts: `load/` (what does the file hold?), `snapshot` (the plain data), `replaying` (what
was alive when?), `sites`, `steps`, `layout` and `analysis` (whose memory is it?), `figures` (what is told of it),
`of_rank` (which rank's is it?) and `judging` (what is wrong?).
"""

from __future__ import annotations

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
"""Imported when it is first asked for: every rank takes a row's type from this package, and seldom more."""

__all__ = ["examine", "read_bytes", "read_snapshots"]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'leakscope.memory_snapshot' has no attribute {name!r}")
    found: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found  # where the import has put the module of that name
    return found
