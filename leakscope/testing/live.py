"""Counts live tensors, and what holds those that were added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leakscope.errors import LeakscopeError
from leakscope.findings.holders import alive_now
from leakscope.graph.model import ObjectKind
from leakscope.profiler.holders import Holders
from leakscope.profiler.result import why_no_look
from leakscope.report.holders import alive_as_text
from leakscope.run.rows import Occasion
from leakscope.units import bytes_text, plural

if TYPE_CHECKING:
    from leakscope.run.model import Look


@dataclass(frozen=True, eq=False, repr=False)
class LiveTensors:
    """How many tensors there were, and their memory. Holds none of them."""

    count: int
    """Tensors: those that gc lists, and those that only C++ holds, as what a backward needs."""
    storages: int
    """Pieces of memory; tensors and their views share one."""
    bytes: int
    """Of all storages, each counted once."""
    _look: Look = field(kw_only=True)
    _memory: tuple[Any, ...] = field(kw_only=True)
    """A weak reference to each storage of the look, which keeps its address from being given to another."""

    def diff(self, before: LiveTensors) -> AddedTensors:
        """What has come since, with its holders at the time of this count; what has gone since is not in it."""
        known = set(before._memory)
        places = self._look.heap.storages.tolist()
        added = [place for place, memory in zip(places, self._memory, strict=True) if memory not in known]
        alive = alive_now(self._look.heap, only=added, hides=self._look.hides)
        return AddedTensors(alive, more=self.count - before.count)

    def __str__(self) -> str:
        return f"{plural(self.count, 'tensor')}, {bytes_text(self.bytes)} in {plural(self.storages, 'storage')}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class AddedTensors(Holders):
    """Tensor memory that was there the second time and not the first, with its holders. False where there is none."""

    more: int = 0
    """Tensors more than before; negative where more have gone than came."""

    @property
    def storages(self) -> int:
        """Pieces of memory that came."""
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
    """Count all tensors that are alive now, garbage that nobody has collected among them.

    Counting by `gc.get_objects()` and `isinstance` misses what only autograd holds, counts memory that views share
    again and again, and runs the code of every object that has a `__class__` or `__getattr__` of its own. This takes a
    look, a tenth of a second in a small process and more with what lives in it; nothing is collected or changed.

    Raises:
        LeakscopeError: this torch lacks what a look needs.

    >>> import torch
    >>> from leakscope.testing import live_tensors
    >>> def train(losses):
    ...     before = live_tensors()
    ...     losses += [torch.ones(256), torch.ones(256)[1:]]
    ...     return live_tensors().diff(before)
    >>> added = train([])
    >>> added.more, added.storages, added.bytes, added.lines[0].name
    (2, 2, 2048, 'losses in train()')

    """
    if why := why_no_look():
        raise LeakscopeError(why)
    from leakscope.heap.garbage import Watched
    from leakscope.heap.snapshot import look

    watched: Watched = []
    seen = look(0, Occasion.BLOCK, watched=watched)
    heap = seen.heap
    return LiveTensors(
        count=sum(len(heap.of_kind(kind)) for kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER)),
        storages=len(heap.storages),
        bytes=int(heap.bytes[heap.storages].sum()),
        _look=seen,
        _memory=tuple(memory for memory, _ in watched),
    )
