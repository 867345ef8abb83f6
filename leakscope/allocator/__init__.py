"""What does torch's memory snapshot say? Files loaded safely, replayed, and compared, all as plain data.

`examine` does all of it. Its parts: `load/` (what does the file hold?), `snapshot` (the plain data), `replaying` (what
was alive when?), `sites`, `steps`, `layout` and `analysis` (whose memory is it?), `figures` (what is told of it),
`of_rank` (which rank's is it?) and `judging` (what is wrong?).
"""

from leakscope.allocator.examine import examine
from leakscope.allocator.load.snapshot_files import read_bytes, read_snapshots

__all__ = ["examine", "read_bytes", "read_snapshots"]
