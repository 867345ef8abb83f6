"""Writes allocator snapshots into the rank's folder, few and of bounded size."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.graph.model import HeapGraph
from leakscope.option import When
from leakscope.originals import Path, open_file, os
from leakscope.record.descriptors import open_private
from leakscope.record.folder import snapshot_name
from leakscope.record.kinds import Occasion

MAX_FILES = {When.AUTO: 4, When.ALWAYS: 16}
"""Files of one rank, by what `--snapshot` asks for, chosen."""
MAX_BYTES = 512 << 20
"""Bytes of all files of one rank together, chosen."""
MIN_GROWTH = 1 << 20
"""Bytes, chosen: growth over the looks, of the device's memory or of what nothing alive holds, that is worth a file."""


class SnapshotFiles:
    """Keeps the first file and the newest ones."""

    def __init__(self, folder: Path, kind: str, wanted: When) -> None:
        self._folder, self._kind, self._wanted = folder, kind, wanted
        self._written: list[tuple[Path, int]] = []
        self._lowest: int | None = None
        self._highest = 0
        self._least_left: int | None = None

    def is_due(self, occasion: Occasion, counted: int | None, heap: HeapGraph) -> bool:
        """Whether this look deserves a file: each with `always`; with `auto` where something was found."""
        if self._wanted == When.ALWAYS or occasion == Occasion.OOM:
            return True
        if occasion == Occasion.PEAK or counted is None:  # in the middle of a step there is always more
            return False
        lowest, highest = self._lowest, self._highest
        self._lowest = counted if lowest is None else min(lowest, counted)
        self._highest = max(highest, counted)
        grew = lowest is not None and counted > highest and counted - lowest >= MIN_GROWTH
        left = left_about(heap)
        self._least_left = min(left, self._least_left if self._least_left is not None else left)
        return grew or left - self._least_left >= MIN_GROWTH

    def write(self, snapshot: Mapping[str, Any], step: int, occasion: Occasion) -> None:
        """One file, whole or not at all; older ones go where there are too many."""
        path = self._folder / snapshot_name(self._kind, step, occasion)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open_file(temporary, "wb", opener=open_private) as stream:
                pickle.dump(snapshot, stream, protocol=4)
            os.replace(temporary, path)
        except BaseException:  # a full disk, or no memory for it
            temporary.unlink(missing_ok=True)
            raise
        self._written = [entry for entry in self._written if entry[0] != path]
        self._written.append((path, path.stat().st_size))
        for gone in surplus([size for _, size in self._written], MAX_FILES.get(self._wanted, 0), MAX_BYTES):
            self._written[gone][0].unlink(missing_ok=True)
            self._written[gone] = (self._written[gone][0], -1)
        self._written = [entry for entry in self._written if entry[1] >= 0]


def left_about(heap: HeapGraph) -> int:
    """Tensor memory that nothing alive holds."""
    return int(heap.bytes[heap.freed != 0].sum())


def surplus(sizes: Sequence[int], most: int, most_bytes: int) -> list[int]:
    """Which of the files, oldest first, must go: the second oldest until number and size are within bounds.

    The newest stays whatever its size.
    """
    left = list(range(len(sizes)))
    gone = []
    while len(left) > 1 and (len(left) > most or sum(sizes[k] for k in left) > most_bytes):
        oldest, *newer = left
        gone.append(newer[0] if len(newer) > 1 else oldest)
        left.remove(gone[-1])
    return gone
