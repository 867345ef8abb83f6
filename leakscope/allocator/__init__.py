"""What does torch's memory snapshot say? Files loaded safely, replayed, and compared, all as plain data.

`examine` does all of it. Its parts: `containers` (where is the pickle?), `plain_pickle`, `event_lane` and
`event_columns` (what does it hold?), `reading`, `trace_reading` and `stack_table` (what does that mean?), `snapshot`
(the plain data), `replaying` (what was alive when?), `sites`, `steps`, `layout` and `analysis` (whose memory is it?),
`figures` (what is told of it), `ranks` and `judging` (what is wrong?).
"""

from leakscope.allocator.examine import examine
from leakscope.allocator.reading import read_bytes, read_snapshots

__all__ = ["examine", "read_bytes", "read_snapshots"]
