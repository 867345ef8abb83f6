"""Counts live tensors, and what holds those that were added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leakscope.errors import LeakscopeError
from leakscope.findings.holders import live_memory
from leakscope.graph.model import ObjectKind
from leakscope.profiler.holders import Holders
from leakscope.profiler.result import why_no_snapshot
from leakscope.report.holders import alive_as_text
from leakscope.run.rows import Occasion
from leakscope.units import bytes_text, plural

if TYPE_CHECKING:
    from leakscope.run.model import HeapSnapshot


@dataclass(frozen=True, eq=False, repr=False)
class LiveTensors:
    """The number and memory of live tensors. It keeps none of them alive.

    >>> import torch
    >>> from leakscope.testing import live_tensors
    >>> kept = torch.ones(256)
    >>> now = live_tensors()
    >>> now.count >= 1 and now.bytes >= 1024
    True
    """

    count: int
    """Number of tensors, including those that only C++ holds, such as saved tensors."""
    storages: int
    """Number of storages; tensors and their views share one."""
    bytes: int
    """Bytes of all storages, each counted once."""
    _snapshot: HeapSnapshot = field(kw_only=True)
    _memory: tuple[Any, ...] = field(kw_only=True)
    """Weak references to the storages, which keep their addresses from being reused."""

    def diff(self, before: LiveTensors) -> AddedTensors:
        """Compare with an earlier count.

        Args:
            before: The earlier count.

        Returns:
            The storages added since, with their holders at the time of this count. Freed storages are not listed.

        """
        known = set(before._memory)
        places = self._snapshot.heap.storages.tolist()
        added = [place for place, memory in zip(places, self._memory, strict=True) if memory not in known]
        alive = live_memory(self._snapshot.heap, only=added, hides=self._snapshot.hides)
        return AddedTensors(alive, more=self.count - before.count)

    def __str__(self) -> str:
        return f"{plural(self.count, 'tensor')}, {bytes_text(self.bytes)} in {plural(self.storages, 'storage')}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class AddedTensors(Holders):
    """Tensor memory that was added between two counts, with its holders. False if there is none.

    >>> from leakscope.testing import live_tensors
    >>> bool(live_tensors().diff(live_tensors()))
    False
    """

    more: int = 0
    """Change of the number of tensors; may be negative."""

    @property
    def storages(self) -> int:
        """Number of added storages."""
        return self.alive.storages

    def __bool__(self) -> bool:
        return self.storages > 0

    def __str__(self) -> str:
        if not self:
            return "no tensor memory was added"
        headline = f"tensor memory added: {bytes_text(self.bytes)} in {plural(self.storages, 'storage')}"
        return alive_as_text(self.alive, f"{headline}; {self.more:+d} tensors")

    __repr__ = __str__


def live_tensors() -> LiveTensors:
    """Count all live tensors, including garbage that has not been collected.

    Counting with `gc.get_objects()` and `isinstance` misses tensors that only autograd holds, counts shared storages
    repeatedly, and runs code of objects that define `__class__` or `__getattr__`. This takes a heap snapshot: 0.1 s in
    a small process, more with many objects. Nothing is collected or changed.

    Returns:
        The counts, to compare with a later one.

    Raises:
        LeakscopeError: Torch lacks what a heap snapshot needs.

    >>> import torch
    >>> from leakscope.testing import live_tensors
    >>> def train(losses):
    ...     before = live_tensors()
    ...     losses += [torch.ones(256), torch.ones(256)]
    ...     return live_tensors().diff(before)
    >>> added = train([])
    >>> added.more, added.storages, added.bytes, added.lines[0].name
    (2, 2, 2048, 'losses in train()')

    """
    if why := why_no_snapshot():
        raise LeakscopeError(why)
    from leakscope.heap.garbage import Watched
    from leakscope.heap.snapshot import take_heap_snapshot

    watched: Watched = []
    seen = take_heap_snapshot(0, Occasion.BLOCK, watched=watched)
    heap = seen.heap
    return LiveTensors(
        count=sum(len(heap.of_kind(kind)) for kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER)),
        storages=len(heap.storages),
        bytes=int(heap.bytes[heap.storages].sum()),
        _snapshot=seen,
        _memory=tuple(memory for memory, _ in watched),
    )
