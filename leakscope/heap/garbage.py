"""What only gc can free, computed from reference counts; at the end, what collecting freed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.model import IMMORTAL, Ints
from leakscope.graph.walks import reachable
from leakscope.heap.autograd import Role
from leakscope.heap.liveness import (
    MOST_LEVELS,
    PrunedHeap,
    RefcountTable,
    References,
    explain_refcounts,
    find_hook_owners,
    prune,
    together,
)
from leakscope.heap.native_graph import NativeReferences, changed
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


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The unreachable objects of the pruned heap, and all their ancestors."""

    objects: Ints
    """Indexes in ascending order."""
    references: References
    """All references among them."""


def find_unreachable(refcounts: RefcountTable, pruned: PrunedHeap) -> Unreachable:
    """Follow `deduce_unreachable` in CPython's gcmodule.c: an object with more references than were found is alive.

    Whatever a live object or a root of the pruned heap reaches is alive too. Ancestors of memory have only ancestors as
    referrers, so nothing else is visited.
    """
    alive = refcounts.unexplained > 0
    alive |= pruned.roots
    alive[_reached(pruned.objects, pruned.references, alive)] = True
    members, parts = _holders_of(refcounts, pruned.objects[~alive[pruned.objects]], alive)
    references = together(parts) if parts else pruned.references.at(np.zeros(0, dtype=np.int64))
    alive[_reached(members, references, alive)] = True
    dead = members[~alive[members]]
    return Unreachable(dead, references.at(~alive[references.holder] & ~alive[references.held]))


def _reached(objects: Ints, references: References, alive: NDArray[np.bool_]) -> Ints:
    """Which of the objects (ascending) can be reached from the live ones among them."""
    holder, held = np.searchsorted(objects, references.holder), np.searchsorted(objects, references.held)
    reached: Ints = objects[reachable(len(objects), holder, held, np.flatnonzero(alive[objects]))]
    return reached


def _holders_of(refcounts: RefcountTable, objects: Ints, alive: NDArray[np.bool_]) -> tuple[Ints, list[References]]:
    """Return (these objects with all ancestors up to live ones, every reference to the unreachable among them)."""
    members = np.zeros(refcounts.count, dtype=bool)
    parts: list[References] = []
    level = objects
    for _ in range(MOST_LEVELS):
        check_deadline()
        members[level] = True
        level = level[~alive[level]]
        if len(level) == 0:
            return np.flatnonzero(members), parts
        parts.append(refcounts.into(level))
        level = np.unique(parts[-1].holder[~members[parts[-1].holder]])
    return np.arange(refcounts.count), [refcounts.into(np.arange(refcounts.count))]


def freed_by(refcounts: RefcountTable, unreachable: Unreachable, native: NativeReferences, objects: Ints) -> Ints:
    """For each object 0 if it is alive, k if the k-th full collection frees it, else IMMORTAL.

    Reference counting then frees what only freed objects held. The next collection sees more, because a tensor shows
    its grad_fn only while C++ does not own it too (pytorch#7343).
    """
    freed = np.zeros(len(objects), dtype=np.int64)
    dead, references = unreachable.objects, unreachable.references
    if len(dead) == 0:
        return freed
    role = np.zeros(len(dead), dtype=np.int8)
    python = dead < refcounts.objects
    role[python] = native.role[dead[python]]
    garbage = _Garbage(
        count=len(dead),
        holder=np.searchsorted(dead, references.holder),
        held=np.searchsorted(dead, references.held),
        python=references.python,
        seen=references.seen,
        plain=references.extra < 0,
        tracked=(dead < native.sweep.tracked) | (role > 0),
        role=role,
    )
    rounds = garbage.rounds()
    place = np.minimum(np.searchsorted(dead, objects), len(dead) - 1)
    among = dead[place] == objects
    freed[among] = rounds[place[among]]
    return freed


class _Garbage:
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
            standing = living & ~died
            held_by_living = np.zeros(self.count, dtype=bool)
            held_by_living[self.held[standing[self.holder]]] = True
            falls = standing & ~held_by_living
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


@dataclass(frozen=True)
class ExplainedHeap:
    """The references of the heap, the pruned heap, and the garbage in it."""

    native: NativeReferences
    refcounts: RefcountTable
    pruned: PrunedHeap
    running: Mapping[int, str]
    """Index of each running frame, mapped to its function's name."""
    freed: Ints
    """The result of `freed_by` for each object of the pruned heap."""
    gaining: Collection[int] = ()
    """Indexes of containers that keep gaining non-tensor objects."""


def explain(
    native: NativeReferences, running: dict[int, str], own: set[int], gaining: Collection[int] = ()
) -> ExplainedHeap:
    """Compare references found with reference counts; `own` are indexes of leakscope's objects."""
    refcounts = explain_refcounts(native)
    pruned = prune(native, refcounts, running, own, gaining)
    if find_hook_owners(native, refcounts, pruned):
        refcounts = explain_refcounts(native)
        pruned = prune(native, refcounts, running, own, gaining)
    unreachable = find_unreachable(refcounts, pruned)
    if _leave_unjudged_what_changed(native, refcounts, unreachable):
        pruned = prune(native, refcounts, running, own, gaining)
        unreachable = find_unreachable(refcounts, pruned)
    freed = freed_by(refcounts, unreachable, native, pruned.objects)
    return ExplainedHeap(native, refcounts, pruned, running, freed, gaining)


def _leave_unjudged_what_changed(native: NativeReferences, refcounts: RefcountTable, unreachable: Unreachable) -> bool:
    """Treat objects that changed since the sweep as alive: another thread has or had them.

    A changed object becomes a root and is counted as not judgeable. So is an object that the Python reader counted
    after its last owner had released it.
    """
    dead = unreachable.objects[unreachable.objects < native.sweep.tracked]
    moved = np.union1d(changed(native, dead), dead[native.sweep.counts[dead] == 0])
    if len(moved) == 0:
        return False
    refcounts.unexplained[moved] = 1
    native.problems.append(f"{len(moved)} objects changed while they were looked at and are left unjudged")
    return True
