"""Why does each object live: is every reference to it explained, and what would a collection free?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from leakscope.capture.heap.garbage import Unreachable, find_unreachable, freed_by
from leakscope.capture.heap.hook_owners import find_hook_owners
from leakscope.capture.heap.native.changes import changed
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.prune import PrunedHeap, prune
from leakscope.capture.heap.refcounts import RefcountTable, explain_refcounts
from leakscope.graph.model import Ints


@dataclass(frozen=True)
class ExplainedHeap:
    """The heap's references, what is left of it on the paths to memory, and what of that is garbage."""

    native: NativeReferences
    refcounts: RefcountTable
    pruned: PrunedHeap
    running: Mapping[int, str]
    """Index of each running frame to its function's name."""
    freed: Ints
    """As `freed_by` gives it, of each object of the pruned heap."""
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
    unreachable = find_unreachable(refcounts, pruned)
    if _leave_unjudged_what_changed(native, refcounts, unreachable):
        pruned = prune(native, refcounts, running, own, gaining)
        unreachable = find_unreachable(refcounts, pruned)
    freed = freed_by(refcounts, unreachable, native, pruned.objects)
    return ExplainedHeap(native, refcounts, pruned, running, freed, gaining)


def _leave_unjudged_what_changed(native: NativeReferences, refcounts: RefcountTable, unreachable: Unreachable) -> bool:
    """Take as held what seemed garbage and has changed since the sweep: another thread has it, or had it.

    What changes becomes a root and is counted among what could not be judged. So is what nothing held any more when the
    Python reader came to count it: its last owner let it go in between.
    """
    dead = unreachable.objects[unreachable.objects < native.sweep.tracked]
    moved = np.union1d(changed(native, dead), dead[native.sweep.counts[dead] == 0])
    if len(moved) == 0:
        return False
    refcounts.unexplained[moved] = 1
    native.problems.append(f"{len(moved)} objects changed while they were looked at and are left unjudged")
    return True
