"""Who could let go of this storage now? Every reference that keeps it, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from leakscope.graph.model import ROOTS, HeapGraph, ObjectKind, ReferenceKind, RootKind
from leakscope.graph.ownership import Climb, Reach, belongs_to_library, reach_of
from leakscope.graph.reach import Mask

_PASSED = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE, ObjectKind.SAVED_TENSOR, ObjectKind.STORAGE)
_MAX_ASKED = 4000
"""Objects asked on the way up from one storage: its tensors and the grad graphs that saved them."""
_NOBODYS = (RootKind.NATIVE, RootKind.INTERPRETER, RootKind.THREAD)
"""Roots that no line of a script can be shown for."""


class _Side(Enum):
    """Who could let go of one reference."""

    USERS = auto()
    LIBRARY = auto()
    INSIDE = auto()
    """The user's code, by letting go of a library's object."""
    WORK = auto()
    GRADIENT = auto()
    OPERAND = auto()
    """The statement that runs."""


@dataclass(frozen=True)
class Holders:
    """The references that keep one storage, up to the first objects that a person could take it from."""

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
    """A Work whose operation still runs, or was not waited for."""
    saved: bool
    """On a path through a tensor that a grad node saved."""
    inside: tuple[int, ...] = ()
    """References inside objects of libraries that the user's code reaches by these alone:"""
    handles: tuple[int, ...] = ()
    """its own references to those objects."""


def holders_of(graph: HeapGraph, storage: int, users: Mask, reached: dict[int, Reach] | None = None) -> Holders:
    """All holders of one storage.

    `users` is `users_side(graph)`, `reached` what other storages of the graph have asked already.
    """
    reached = {} if reached is None else reached
    by_side: dict[_Side, list[int]] = {side: [] for side in _Side}
    tuples: list[int] = []
    native = saved = False
    climb = Climb(storage, _MAX_ASKED)
    for here in climb:
        if ROOTS[graph.root[here]] in _NOBODYS:
            if graph.object(here).type == "tuple":
                tuples.append(here)
            else:
                native = True
        for reference in graph.into(here).tolist():
            saved = saved or graph.reference(reference).kind == ReferenceKind.SAVED
            side = _side(graph, reference, users, reached)
            if side is None:
                climb.go_on(int(graph.holder[reference]), reference)
            else:
                by_side[side].append(reference)
    of_library = [r for r in by_side[_Side.WORK] if belongs_to_library(graph, int(graph.holder[r]))]
    inside = by_side[_Side.INSIDE]
    return Holders(
        users=tuple(sorted(by_side[_Side.USERS])),
        library=tuple(sorted([*by_side[_Side.LIBRARY], *of_library])),
        native=native or bool(by_side[_Side.OPERAND]) or not climb.complete,
        packed=tuple(r for here in tuples for r in graph.out_of(here).tolist() if int(graph.held[r]) in climb.by),
        gradient=bool(by_side[_Side.GRADIENT]),
        work=bool(by_side[_Side.WORK]),
        saved=saved,
        inside=tuple(sorted(inside)),
        handles=tuple(sorted({handle for r in inside for handle in reached[int(graph.holder[r])].handles})),
    )


def _side(graph: HeapGraph, reference: int, users: Mask, reached: dict[int, Reach]) -> _Side | None:
    """What one reference on the way up says; None where its own holders must be asked."""
    r = graph.reference(reference)
    holder = graph.object(r.holder)
    if r.kind == ReferenceKind.OPERAND:
        return _Side.OPERAND
    if holder.kind == ObjectKind.PARAMETER and r.name == ".grad":
        return _Side.GRADIENT
    if holder.kind == ObjectKind.WORK:
        return _Side.WORK
    if holder.kind in _PASSED or holder.type == "tuple":
        return None
    if not users[r.holder] or belongs_to_library(graph, r.holder):
        return _Side.LIBRARY
    if r.holder not in reached:
        reached[r.holder] = reach_of(graph, r.holder)
    reach = reached[r.holder]
    return _Side.USERS if reach.own else _Side.INSIDE if reach.handles else _Side.LIBRARY
