"""Does a library alone keep this storage, and by which of its attributes and variables?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from leakscope.findings.model import Hop
from leakscope.findings.naming.trace import hops
from leakscope.findings.ownership.known_leaks import TYPES, KnownLeak, known_leak
from leakscope.findings.why import HopReason
from leakscope.graph.model import HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.ownership import Climb, is_library_state
from leakscope.graph.paths import ShortestPaths
from leakscope.graph.retained import freed_storages

_PASSED = (
    ObjectKind.STORAGE,
    ObjectKind.TENSOR,
    ObjectKind.PARAMETER,
    ObjectKind.GRAD_NODE,
    ObjectKind.SAVED_TENSOR,
    ObjectKind.CONTAINER,
    ObjectKind.WORK,
)
_RECORDS = (f"{TYPES}stage._RecvInfo", "torch.distributed.distributed_c10d.P2POp")
"""Small objects that a stage or a schedule keeps one of for each microbatch: what keeps them tells more."""


@dataclass(frozen=True)
class Hold:
    """One of a library's objects, functions or frames with the references that lead from it down to a storage."""

    known: KnownLeak
    owner: int
    path: tuple[int, ...]

    def is_direct(self, graph: HeapGraph) -> bool:
        """Whether no grad graph lies between: the tensor itself is kept, not what autograd saved below it."""
        return all(_is_direct(graph, r) for r in self.path)


@dataclass(frozen=True)
class Holds:
    """All that keeps one storage."""

    known: tuple[Hold, ...]
    running: bool
    """A frame or function of a library that is running keeps it too."""
    others: tuple[int, ...]
    """References of the script's that keep it too."""
    native: bool
    """Native code, or more than could be asked, keeps it too."""


def holds_of(graph: HeapGraph, storage: int, through_graphs: bool = True) -> Holds:
    """Everything that keeps a storage, up to the first objects that are no tensors, grad nodes or containers.

    Without `through_graphs` only who has a tensor itself is told, not who has a graph that it is saved in.
    """
    known_holds: list[Hold] = []
    others: list[int] = []
    running = native = False
    comm_used = storage in graph.comm_uses if graph.comm_uses else None
    climb = Climb(storage)
    for here in climb:
        native = native or bool(graph.root[here])
        for reference in graph.into(here).tolist():
            holder = int(graph.holder[reference])
            if holder in climb.by or not (through_graphs or _is_direct(graph, reference)):
                continue
            obj = graph.object(holder)
            if obj.kind in _PASSED or obj.type in _RECORDS:
                climb.go_on(holder, reference)
            elif not is_library_state(obj):
                others.append(reference)
            else:
                path = [reference, *_down(graph, climb.by, here)]
                known = known_leak(hops(graph, holder, path, 0, {}, (None, None)), comm_used)
                if known is not None:
                    known_holds.append(Hold(known, holder, tuple(path)))
                running = running or known is None
    return Holds(tuple(known_holds), running, tuple(others), native or not climb.complete)


def _is_direct(graph: HeapGraph, reference: int) -> bool:
    return graph.reference(reference).kind not in (ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED)


def _down(graph: HeapGraph, by: Mapping[int, int], here: int) -> list[int]:
    """References by which the climb came up to an object, from it down."""
    path = []
    while (reference := by[here]) >= 0:
        path.append(reference)
        here = int(graph.held[reference])
    return path


def whole_trace(graph: HeapGraph, paths: ShortestPaths, hold: Hold, frees: int) -> tuple[Hop, ...]:
    """From a root to the holder and down to the storage."""
    above = paths.path_to(graph, hold.owner)
    path = [*above, *hold.path]
    start = int(graph.holder[path[0]])
    return hops(
        graph,
        start,
        path,
        len(above) + 1,
        {hold.path[0]: frees} if frees else {},
        (HopReason.ABOVE_LIBRARY, HopReason.KEPT_BY_LIBRARY),
    )


def freed_by(graph: HeapGraph, holds: Iterable[Hold], storages: Iterable[int]) -> int:
    """Bytes of these storages that would be freed if the holders let go of the tensors, and nobody else did."""
    cuts = {
        next((r for r in hold.path[::-1] if graph.reference(r).kind != ReferenceKind.MEMORY), hold.path[0])
        for hold in holds
    }
    gone = freed_storages(graph, np.asarray(sorted(cuts), dtype=np.int64))
    return int(graph.bytes[np.intersect1d(gone, np.asarray(sorted(storages), dtype=np.int64))].sum())
