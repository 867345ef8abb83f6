"""A simulation of garbage collection, and the measurement of a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import IMMORTAL, Ints
from leakscope.graph.walks import reachable
from leakscope.heap.autograd import Role
from leakscope.originals import gc
from leakscope.process.gc_control import check_deadline
from leakscope.process.guard import CLOCK
from leakscope.process.torch_compat import StorageWeakRef
from leakscope.run.model import GcDiff
from leakscope.run.rows import Occasion

MAX_COLLECTIONS = 200
"""Maximum collections that are simulated. Heuristic: garbage that needs more is reported with this number."""
_FULL = 2
"""The generation whose collection includes the younger ones."""


class Garbage:
    """The unreachable part of the heap, and a simulation of its collection."""

    def __init__(
        self, count: int, holder: Ints, held: Ints, python: NDArray[np.int32], seen: NDArray[np.bool_],
        plain: NDArray[np.bool_], tracked: NDArray[np.bool_], role: NDArray[np.int8],
    ) -> None:  # fmt: skip
        self.count = count
        self.holder, self.held, self.python, self.seen, self.plain = holder, held, python, seen, plain
        self.tracked, self.role = tracked, role

    def rounds(self) -> Ints:
        """For each object the number of the collection that frees it; IMMORTAL if none does."""
        freed = np.zeros(self.count, dtype=np.int64)
        living = np.ones(self.count, dtype=bool)
        for number in range(1, MAX_COLLECTIONS + 1):
            if not living.any():
                break
            check_deadline()
            died = self._fall(living, self._collected(living, first=number == 1))
            if not died.any():
                freed[living] = IMMORTAL
                return freed
            freed[died] = number
            living &= ~died
        freed[living] = MAX_COLLECTIONS
        return freed

    def _collected(self, living: NDArray[np.bool_], first: bool) -> NDArray[np.bool_]:
        """What one collection finds unreachable, with the references that gc sees."""
        here = living[self.holder] & living[self.held]
        holder, held, python = self.holder[here], self.held[here], self.python[here]
        native = np.bincount(held[python == 0], minlength=self.count) > 0
        shares = native & (self.role > 0)  # tensors and nodes: one reference for all C++ owners
        counts = np.bincount(held, weights=python, minlength=self.count) + shares
        visible = self.tracked[holder] & (self.plain[here] | self._shown(here, native, first))
        seen = np.bincount(held[visible], minlength=self.count)
        outside = living & (~self.tracked | (counts > seen))
        starts = np.flatnonzero(outside)
        survives = reachable(self.count, holder[visible], held[visible], starts)
        collected: NDArray[np.bool_] = living & ~survives
        return collected

    def _shown(self, here: NDArray[np.bool_], native: NDArray[np.bool_], first: bool) -> NDArray[np.bool_]:
        """Which C++ references gc's traversal reports: first as observed, later as predicted."""
        if first:
            return self.seen[here]
        holder, held, python = self.holder[here], self.held[here], self.python[here]
        owners = np.bincount(held[python == 0], minlength=self.count)
        sole = ~native[holder]
        to_node = (self.role[holder] == Role.TENSOR) & (self.role[held] == Role.GRAD_NODE) & (owners[held] == 1)
        to_hooks = (self.role[holder] == Role.GRAD_NODE) & (python > 0)
        shown: NDArray[np.bool_] = sole & (to_node | to_hooks)
        return shown

    def _fall(self, living: NDArray[np.bool_], collected: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Free the collected objects, and by reference counting what only they held."""
        died = collected.copy()
        while True:
            check_deadline()
            remaining = living & ~died
            held_by_living = np.zeros(self.count, dtype=bool)
            held_by_living[self.held[remaining[self.holder]]] = True
            falls = remaining & ~held_by_living
            if not falls.any() or not died.any():
                return died
            died |= falls


Watched = list[tuple[Any, int]]
"""(weak reference to a storage, its bytes)"""


def watch_storage(storage: Any, size: int) -> tuple[Any, int]:
    """Record a storage and its bytes through a weak reference."""
    return StorageWeakRef(storage), size


def real_diff(
    predicted_bytes: int, watched: Watched, after: Occasion | None = None, storages: Sequence[int] = ()
) -> GcDiff:
    """Collect generations 0, 1, 2 and then 2 until nothing more is freed, measuring each.

    `watched` are the storages alive before, `storages` their indexes in the preceding heap snapshot, which had this
    occasion. Changes the program: only after the last snapshot, or on request.
    """
    before = watched
    freed: list[int] = []
    seconds: list[float] = []
    full = 0
    for generation in (0, 1, *([_FULL] * MAX_COLLECTIONS)):
        started = CLOCK.perf_counter()
        unreachable = gc.collect(generation)
        seconds.append(CLOCK.perf_counter() - started)
        freed.append(sum(size for storage, size in watched if storage.expired()))
        watched = [(storage, size) for storage, size in watched if not storage.expired()]
        if generation == _FULL:
            full += freed[-1] > 0
            if unreachable == 0 or freed[-1] == 0:
                break
    if sum(freed[:2]) and not full:
        full = 1  # a full collection would have freed at once what the young generations freed
    gone = tuple(index for index, (storage, _) in zip(storages, before, strict=False) if storage.expired())
    return GcDiff(tuple(freed), full, tuple(seconds), predicted_bytes, after, gone)
