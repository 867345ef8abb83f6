"""Who could let go of this storage now? Every reference that keeps it, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.graph.model import ROOTS, HeapGraph, ObjectKind, ReferenceKind, RootKind
from leakscope.graph.ownership import Climb, Reach, belongs_to_library, reach_of
from leakscope.graph.reach import Mask

_PASSED = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE, ObjectKind.SAVED_TENSOR, ObjectKind.STORAGE)
_MAX_ASKED = 4000
"""Objects asked on the way up from one storage: its tensors and the grad graphs that saved them."""
_NOBODYS = (RootKind.NATIVE, RootKind.INTERPRETER, RootKind.THREAD)
"""Roots that no line of a script can be shown for."""


@dataclass(frozen=True)
class Holders:
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


def holders_of(graph: HeapGraph, storage: int, users: Mask, reached: dict[int, Reach] | None = None) -> Holders:
    """All holders of one storage.

    `users` is `users_side(graph)`, `reached` what other storages of the graph have asked already.
    """
    reached = {} if reached is None else reached
    mine: list[int] = []
    theirs: list[int] = []
    tuples: list[int] = []
    inside: dict[int, tuple[int, ...]] = {}
    native = gradient = work = saved = False
    climb = Climb(storage, _MAX_ASKED)
    for here in climb:
        if ROOTS[graph.root[here]] in _NOBODYS:
            if graph.object(here).type == "tuple":
                tuples.append(here)
            else:
                native = True
        for reference in graph.into(here).tolist():
            r = graph.reference(reference)
            holder = graph.object(r.holder)
            saved = saved or r.kind == ReferenceKind.SAVED
            if r.kind == ReferenceKind.OPERAND:
                native = True
            elif holder.kind == ObjectKind.PARAMETER and r.name == ".grad":
                gradient = True
            elif holder.kind == ObjectKind.WORK:
                work = True
                if belongs_to_library(graph, r.holder):
                    theirs.append(reference)
            elif holder.kind in _PASSED or holder.type == "tuple":
                climb.go_on(r.holder, reference)
            elif users[r.holder] and not belongs_to_library(graph, r.holder):
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
    return Holders(
        users=tuple(sorted(mine)),
        library=tuple(sorted(theirs)),
        native=native or not climb.complete,
        packed=tuple(r for here in tuples for r in graph.out_of(here).tolist() if int(graph.held[r]) in climb.by),
        gradient=gradient,
        work=work,
        saved=saved,
        inside=tuple(sorted(inside)),
        handles=tuple(sorted({handle for handles in inside.values() for handle in handles})),
    )
