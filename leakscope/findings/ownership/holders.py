"""Who could let go of this storage now? Every reference that keeps it, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from leakscope.findings.ownership.library_paths import is_librarys, owners
from leakscope.graph.model import ROOTS, HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.ownership import Reach, is_users, reach_of
from leakscope.graph.reach import Mask, reachable

_PASSED = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE, ObjectKind.SAVED_TENSOR, ObjectKind.STORAGE)
_MOST = 4000
"""Objects asked on the way up from one storage."""


@dataclass(frozen=True)
class Grips:
    """The references that keep one storage, seen from the storage up to the first object that a person could take it from."""

    users: tuple[int, ...]
    """References the user's code could drop: a local, an item, an attribute, a closure variable."""
    library: tuple[int, ...]
    """References of libraries' frames and objects."""
    native: bool
    """Held by a running call's C++ or by native code."""
    packed: tuple[int, ...]
    """References of tuples that a running call holds: the packed arguments of a `f(*args)`, or a library's."""
    gradient: bool
    """A parameter's `.grad`."""
    work: bool
    """A Work that is still on the wire, or was not waited for."""
    saved: bool
    """On a way through a tensor that a grad node saved."""
    inside: tuple[int, ...] = ()
    """References inside objects of libraries that the user's code reaches by these alone:"""
    handles: tuple[int, ...] = ()
    """its own references to those objects."""


def users_side(graph: HeapGraph) -> Mask:
    """Which objects a walk from the user's own frames and modules reaches."""
    starts = [
        int(k) for k in graph.roots if ROOTS[graph.root[k]] in ("frame", "module") and is_users(graph.object(int(k)))
    ]
    return reachable(len(graph), graph.holder, graph.held, np.asarray(starts, dtype=np.int64))


def grips_of(graph: HeapGraph, storage: int, users: Mask, reached: dict[int, Reach] | None = None) -> Grips:
    """All grips on one storage; `users` is `users_side(graph)`, `reached` what other storages of the graph have asked already."""
    reached = {} if reached is None else reached
    mine: list[int] = []
    theirs: list[int] = []
    packed: list[int] = []
    inside: dict[int, tuple[int, ...]] = {}
    flags: Mapping[str, list[bool]] = {"native": [], "gradient": [], "work": [], "saved": []}
    waiting, seen = [storage], {storage}
    while waiting and len(seen) < _MOST:
        here = waiting.pop()
        if ROOTS[graph.root[here]] in ("native", "interpreter", "thread"):
            if graph.object(here).type == "tuple":
                packed += [r for r in graph.out_of(here).tolist() if int(graph.held[r]) in seen]
            else:
                flags["native"].append(True)
        for reference in graph.into(here).tolist():
            r = graph.reference(reference)
            holder = graph.object(r.holder)
            if r.kind == ReferenceKind.SAVED:
                flags["saved"].append(True)
            if r.kind == ReferenceKind.OPERAND:
                flags["native"].append(True)
            elif holder.kind == ObjectKind.PARAMETER and r.name == ".grad":
                flags["gradient"].append(True)
            elif holder.kind == ObjectKind.WORK:
                flags["work"].append(True)
                if _belongs_to_library(graph, r.holder):
                    theirs.append(reference)
            elif holder.kind in _PASSED or holder.type == "tuple":
                if r.holder not in seen:
                    seen.add(r.holder)
                    waiting.append(r.holder)
            elif users[r.holder] and not _belongs_to_library(graph, r.holder):
                if r.holder not in reached:
                    reached[r.holder] = reach_of(graph, r.holder)
                reach = reached[r.holder]
                if reach.own:
                    mine.append(reference)
                elif reach.handles:
                    inside[reference] = reach.handles
                else:
                    theirs.append(reference)
            else:
                theirs.append(reference)
    return Grips(
        tuple(sorted(mine)), tuple(sorted(theirs)), bool(flags["native"]) or len(seen) >= _MOST, tuple(packed),
        bool(flags["gradient"]), bool(flags["work"]), bool(flags["saved"]),
        tuple(sorted(inside)), tuple(sorted({handle for found in inside.values() for handle in found})),
    )  # fmt: skip


def _belongs_to_library(graph: HeapGraph, index: int) -> bool:
    """A library's own object, or a container or Work that only a library's objects and frames have."""
    if graph.object(index).kind not in (ObjectKind.CONTAINER, ObjectKind.WORK):
        return is_librarys(graph, index)
    found = owners(graph, index)
    return bool(found) and all(is_librarys(graph, owner) for owner in found)
