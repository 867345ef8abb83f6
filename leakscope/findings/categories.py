"""Sorts every live storage into one category by the references to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import AliveAtEnd
from leakscope.findings.model import RankSummary
from leakscope.findings.peak import avoidable_peak_bytes
from leakscope.graph.model import (
    IMMORTAL,
    REACHABLE,
    ROOTS,
    TENSOR_KINDS,
    HeapGraph,
    ObjectKind,
    ReferenceKind,
    RootKind,
)
from leakscope.graph.walks import Mask, reachable
from leakscope.run.model import HeapSnapshot, Rank
from leakscope.run.rows import Occasion

HOST = "in host memory"
"""Category for host memory of a run that uses an accelerator."""
CATEGORIES = (
    "parameter",
    "gradient",
    "optimizer state",
    "buffer",
    "leaked",
    "activation held by a live graph",
    "P2P or collective buffer",
    "input or label",
    "held by a named root",
    "held by native code",
    HOST,
)
_UNSORTED = ("end", "peak", "oom", "memory")
"""Occasions of snapshots that are not at the end of a step: only leaks are sorted there."""
_BATCH_DEPTH = 3
"""Maximum nesting of a batch: a tuple of dicts of lists."""


def categories(graph: HeapGraph, leaked: Collection[int] = ()) -> dict[str, int]:
    """Bytes in each category; each storage counts once, in the first category of `CATEGORIES` that fits.

    Garbage is leaked, whatever it was before. With an accelerator in use, the other categories are of its memory.
    """
    n = len(graph)
    name = np.array(graph.strings, dtype=object)[graph.reference_name] if len(graph.holder) else np.zeros(0, object)
    memory = graph.is_reference_kind(ReferenceKind.MEMORY) | _inner(graph, name)
    masks: dict[str, Mask] = {}
    storages = graph.storages

    def over(tensors: Mask) -> Mask:
        return reachable(n, graph.holder[memory], graph.held[memory], np.flatnonzero(tensors))[storages]

    def held_by(mask: Mask) -> Mask:
        tensors = np.zeros(n, dtype=bool)
        tensors[graph.held[mask]] = True
        return over(tensors)

    masks["parameter"] = over(graph.is_kind(ObjectKind.PARAMETER))
    masks["gradient"] = held_by(name == ".grad")
    states = (name == ".state") & graph.is_kind(ObjectKind.OPTIMIZER)[graph.holder]
    items = graph.is_reference_kind(ReferenceKind.ITEM)
    through = reachable(
        n,
        graph.holder[items],
        graph.held[items],
        graph.held[states],
    )
    masks["optimizer state"] = over(through)
    masks["buffer"] = held_by(graph.is_reference_kind(ReferenceKind.BUFFER))
    masks["leaked"] = np.isin(storages, list(leaked)) | (graph.freed[storages] != REACHABLE)
    masks["activation held by a live graph"] = held_by(graph.is_reference_kind(ReferenceKind.SAVED))
    masks["P2P or collective buffer"] = held_by(graph.is_kind(ObjectKind.WORK)[graph.holder]) | np.isin(
        storages, list(graph.comm_uses)
    )
    masks["input or label"] = over(_given(graph, name))
    named = graph.roots[graph.root[graph.roots] != ROOTS.index(RootKind.NATIVE)]
    masks["held by a named root"] = reachable(n, graph.holder, graph.held, named)[storages]
    host = ~np.isin(storages, list(graph.device)) & bool(graph.device)
    left = np.ones(len(storages), dtype=bool)
    garbage = graph.freed[storages] != REACHABLE
    result: dict[str, int] = {}
    for category in CATEGORIES:
        here = left & (masks.get(category, left))
        if category != "leaked":
            here &= ~garbage & (host if category == HOST else ~host)
        result[category] = int(graph.bytes[storages[here]].sum())
        left &= ~here
    return result


def _inner(graph: HeapGraph, name: np.ndarray[Any, np.dtype[np.object_]]) -> Mask:
    """References from a wrapper tensor (DTensor, nested or quantized) to its parts."""
    tensor = graph.is_kind(*TENSOR_KINDS)
    owns = np.zeros(len(graph), dtype=bool)
    owns[graph.holder[graph.is_reference_kind(ReferenceKind.MEMORY)]] = True
    attribute = graph.is_reference_kind(ReferenceKind.ATTRIBUTE) & (name != ".grad")
    inner: Mask = attribute & tensor[graph.holder] & tensor[graph.held] & ~owns[graph.holder]
    return inner


def _given(graph: HeapGraph, name: np.ndarray[Any, np.dtype[np.object_]]) -> Mask:
    """Tensors that no operation made, named by a variable of a running function or the script, or in its batch."""
    variables = graph.is_kind(ObjectKind.FRAME, ObjectKind.NAMESPACE)
    reached = np.zeros(len(graph), dtype=bool)
    reached[graph.held[variables[graph.holder]]] = True
    items = graph.is_reference_kind(ReferenceKind.ITEM)
    containers = graph.is_kind(ObjectKind.CONTAINER)
    for _ in range(_BATCH_DEPTH):
        reached[graph.held[items & reached[graph.holder] & containers[graph.holder]]] = True
    made = np.zeros(len(graph), dtype=bool)
    made[graph.holder[name == ".grad_fn"]] = True
    given: Mask = reached & graph.is_kind(ObjectKind.TENSOR) & ~made
    return given


def snapshots_after_steps(rank: Rank) -> list[HeapSnapshot]:
    """The snapshots by which ranks are compared; all if a rank has none at the end of a step."""
    return [snapshot for snapshot in rank.heap_snapshots if snapshot.occasion not in _UNSORTED] or list(
        rank.heap_snapshots
    )


def summary(rank: Rank, leaks: Sequence[Candidate]) -> RankSummary:
    """Figures of one rank at its last snapshot, and its categories at every snapshot."""
    snapshots = snapshots_after_steps(rank)
    diff = rank.gc_diff
    by_step = tuple(
        (
            snapshot.step,
            categories(snapshot.heap, {s for leak in leaks for s in leak.storages_at.get(snapshot.step, ())}),
        )
        for snapshot in snapshots
    )
    noted = [*(step.peak_bytes for step in rank.steps), *(snapshot.peak_bytes for snapshot in rank.heap_snapshots)]
    peaks = [peak for peak in noted if peak is not None]
    return RankSummary(
        peak_bytes=max(peaks, default=None),
        avoidable_peak_bytes=avoidable_peak_bytes(rank),
        freed_by_gc_bytes=sum(diff.freed_bytes) if diff else None,
        gc_seconds=sum(diff.seconds) if diff else None,
        explained_bytes=snapshots[-1].explained_bytes if snapshots else 0,
        counted_bytes=snapshots[-1].counted_bytes if snapshots else None,
        categories=by_step[-1][1] if by_step else {},
        categories_by_step=by_step,
    )


def garbage_of(rank: Rank) -> int:
    """Bytes awaiting gc at the rank's last snapshot."""
    snapshot = rank.heap_snapshots[-1] if rank.heap_snapshots else None
    return 0 if snapshot is None else int(snapshot.heap.bytes[snapshot.heap.freed > 0].sum())


def alive_at_end(rank: Rank) -> tuple[AliveAtEnd, ...]:
    """What was alive when the main code returned, by category; shown, never judged."""
    return tuple(
        AliveAtEnd(
            rank.number,
            {name: size for name, size in categories(snapshot.heap).items() if size},
            int(snapshot.heap.bytes[snapshot.heap.freed == IMMORTAL].sum()),
        )
        for snapshot in rank.heap_snapshots
        if snapshot.occasion == Occasion.END and not rank.steps
    )
