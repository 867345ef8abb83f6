"""What does torch's memory snapshot say? Files loaded safely, replayed, and compared, all as plain data.

`examine` does all of it. Its parts: `load/` (what does the file hold?), `snapshot` (the plain data), `replaying` (what
was alive when?), `sites`, `steps`, `layout` and `analysis` (whose memory is it?), `figures` (what is told of it),
`of_rank` (which rank's is it?) and `judging` (what is wrong?).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.allocator.examine import examine
    from leakscope.allocator.load.snapshot_files import read_bytes, read_snapshots

_MODULE_OF = {
    "examine": "leakscope.allocator.examine",
    "read_bytes": "leakscope.allocator.load.snapshot_files",
    "read_snapshots": "leakscope.allocator.load.snapshot_files",
}
"""Imported when it is first asked for: every rank takes a row's type from this package, and seldom more."""

__all__ = ["examine", "read_bytes", "read_snapshots"]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'leakscope.allocator' has no attribute {name!r}")
    found: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found  # where the import has put the module of that name
    return found
