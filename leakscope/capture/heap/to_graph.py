"""The kept objects and references as the columns of a HeapGraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leakscope.capture.heap.describe import Described, describe, namespace
from leakscope.capture.heap.native_references import Explorer
from leakscope.capture.heap.prune import Kept
from leakscope.capture.heap.refcounts import Account
from leakscope.capture.heap.reference_names import Edge, Names
from leakscope.graph.model import KINDS, REFERENCE_KINDS, ROOTS, CommUse, HeapGraph, ObjectKind, RootKind
from leakscope.graph.reach import reachable


@dataclass
class _Strings:
    index: dict[str, int]

    def code(self, text: str) -> int:
        return self.index.setdefault(text, len(self.index))


def columns(
    found: Explorer, books: Account, kept: Kept, running: dict[int, str],
    freed: np.ndarray[Any, np.dtype[np.int64]], names: Names, made_at: Mapping[int, str],
    comm_uses: Mapping[int, CommUse], device: Mapping[int, str] | None,
) -> tuple[HeapGraph, list[int]]:  # fmt: skip
    """The graph, and for each of its objects the index in the sweep.

    `device` maps the address of each storage outside host memory to its device; None where no accelerator is in use.
    """
    edges = names.edges()
    order = [k for k in kept.objects.tolist() if names.stands_for(k) == k]
    place = {k: i for i, k in enumerate(order)}
    text = _Strings({"": 0})
    storages = list(found.storages.values())
    rows: list[tuple[Described, int]] = []
    makers: dict[int, str] = {}
    uses: dict[int, CommUse] = {}
    devices: dict[int, str] = {}
    for i, index in enumerate(order):
        if index >= books.objects:
            storage = storages[index - books.objects]
            label = _memory(storage.address, device)
            rows.append(
                (Described("storage", "storage", label, "storage", made_at.get(storage.address, "")), storage.bytes)
            )
            if device is not None and storage.address in device:
                devices[i] = device[storage.address]
            if storage.address in made_at:
                makers[i] = made_at[storage.address]
            if storage.address in comm_uses:
                uses[i] = comm_uses[storage.address]
        elif index in kept.modules:
            rows.append((namespace(kept.modules[index]), 0))
        else:
            told = describe(found.sweep.objects[index], found.types)
            rows.append(
                (replace(told, kind=ObjectKind.ARRAY, size=kept.arrays[index]) if index in kept.arrays else told, 0)
            )
    kept_edges = sorted({e for e in edges if e[0] in place and e[1] in place})
    described = [row for row, _ in rows]
    graph = HeapGraph(
        type=_ints([text.code(d.type) for d in described]),
        kind=_ints([KINDS.index(d.kind) for d in described]),
        label=_ints([text.code(d.label) for d in described]),
        name=_ints([text.code(d.name) for d in described]),
        where=_ints([text.code(d.where) for d in described]),
        bytes=_ints([size for _, size in rows]),
        size=_ints([d.size for d in described]),
        root=_roots(order, place, books, kept, running, freed, kept_edges),
        freed=_freed(order, freed, names, kept),
        unexplained=books.unexplained[order] if order else _ints([]),
        holder=_ints([place[e[0]] for e in kept_edges]),
        held=_ints([place[e[1]] for e in kept_edges]),
        reference_kind=_ints([REFERENCE_KINDS.index(e[2]) for e in kept_edges]),
        reference_name=_ints([text.code(e[3]) for e in kept_edges]),
        reference_where=_ints([text.code(e[4]) for e in kept_edges]),
        strings=(),
        made_at=makers,
        comm_uses=uses,
        device=devices,
    )
    object.__setattr__(graph, "strings", tuple(text.index))
    return graph, order


def _memory(address: int, device: Mapping[int, str] | None) -> str:
    """As a person says it; where there is an accelerator, which memory it is."""
    if device is None:
        return "tensor memory"
    return f"tensor memory on {device[address]}" if address in device else "tensor memory of the host"


def _ints(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(values, dtype=np.int64)


def _freed(order: list[int], freed: Any, names: Names, kept: Kept) -> np.ndarray[Any, np.dtype[np.int64]]:
    return freed[order] if order else _ints([])


def _roots(
    order: list[int], place: dict[int, int], books: Account, kept: Kept, running: dict[int, str],
    freed: np.ndarray[Any, np.dtype[np.int64]], edges: list[Edge],
) -> np.ndarray[Any, np.dtype[np.int64]]:  # fmt: skip
    """Why each object lives; what lives for a reason outside the pruned graph is a root of the interpreter's."""
    codes = np.zeros(len(order), dtype=np.int64)
    for i, index in enumerate(order):
        if index in kept.modules:
            codes[i] = ROOTS.index(RootKind.MODULE)
        elif index in running:
            codes[i] = ROOTS.index(RootKind.FRAME)
        elif books.unexplained[index] > 0:
            codes[i] = ROOTS.index(RootKind.NATIVE)
    holder, held = _ints([place[e[0]] for e in edges]), _ints([place[e[1]] for e in edges])
    alive = freed[order] == 0 if order else np.zeros(0, bool)
    while True:
        lost = alive & ~reachable(len(order), holder, held, np.flatnonzero(codes > 0))
        if not lost.any():
            return codes
        held_by_lost = np.zeros(len(order), bool)
        held_by_lost[held[lost[holder]]] = True
        tops = lost & ~held_by_lost
        codes[np.flatnonzero(tops if tops.any() else lost)] = ROOTS.index(RootKind.INTERPRETER)
