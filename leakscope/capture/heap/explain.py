"""Why does each object live: is every reference to it explained, and what would a collection free?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from leakscope.capture.heap.garbage import freed_by
from leakscope.capture.heap.hook_owners import find_hook_owners
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.prune import PrunedHeap, prune
from leakscope.capture.heap.python.columns import counts_of
from leakscope.capture.heap.refcounts import RefcountTable, explain_refcounts
from leakscope.graph.model import Ints
from leakscope.graph.reach import reachable


@dataclass(frozen=True)
class ExplainedHeap:
    """The heap's references, what is left of it on the paths to memory, and what of that is garbage."""

    native: NativeReferences
    refcounts: RefcountTable
    pruned: PrunedHeap
    running: Mapping[int, str]
    """Index of each running frame to its function's name."""
    freed: Ints
    """As `freed_by` gives it."""
    gaining: Collection[int] = ()
    """Indexes of containers that keep gaining objects that are no tensors."""


def explain(
    native: NativeReferences, running: dict[int, str], own: set[int], gaining: Collection[int] = ()
) -> ExplainedHeap:
    """Set the references found against those counted; `own` are indexes of leakscope's own objects."""
    refcounts = explain_refcounts(native)
    pruned = prune(native, refcounts, running, own, gaining)
    if find_hook_owners(native, refcounts, pruned):
        refcounts = explain_refcounts(native)
        pruned = prune(native, refcounts, running, own, gaining)
    if _leave_unjudged_what_changed(native, refcounts):
        pruned = prune(native, refcounts, running, own, gaining)
    tracked = np.zeros(refcounts.objects, dtype=bool)
    tracked[: native.sweep.tracked] = True
    tracked[native.sweep.tracked :] = native.role[native.sweep.tracked :] > 0
    return ExplainedHeap(native, refcounts, pruned, running, freed_by(refcounts, native.role, tracked), gaining)


def _leave_unjudged_what_changed(native: NativeReferences, refcounts: RefcountTable) -> bool:
    """Take as held what seemed garbage but whose count has changed since the sweep: another thread has it.

    An object whose count moves is alive; it becomes a root and is counted among what could not be judged.
    """
    starts = np.flatnonzero(refcounts.unexplained > 0)
    reached = reachable(refcounts.count, refcounts.holder, refcounts.held, starts)
    dead = np.flatnonzero(~reached[: native.sweep.tracked])
    objects = [native.sweep.objects[k] for k in dead.tolist()]
    before = native.sweep.counts[dead]
    moved = dead[counts_of(objects) - 1 > before + (native.role[dead] > 0)]
    if len(moved) == 0:
        return False
    refcounts.unexplained[moved] = 1
    native.problems.append(f"{len(moved)} objects changed while they were looked at and are left unjudged")
    return True
