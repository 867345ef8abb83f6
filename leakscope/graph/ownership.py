"""Attributes objects to the user's code, to a library, or to what both build with."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np

from leakscope.graph.model import ROOTS, HeapGraph, Object, ObjectKind, ReferenceKind, RootKind
from leakscope.graph.walks import Mask, reachable

BUILT_WITH = frozenset({"torch", "numpy", "scipy", *sys.stdlib_module_names})
"""Packages whose objects hold what others put there: a Sequential's hooks, a deque, a partial, a queue."""
LIBRARY_STATE = ("torch.distributed.", "torch.nn.parallel.")
"""Types whose attributes torch fills, not the script."""
MAX_ASKED = 1000
"""Objects asked on the way up from one object; above a larger knot its holders are told as not known."""
_TENSORS = (ObjectKind.STORAGE, ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE, ObjectKind.SAVED_TENSOR)

Place = TypeVar("Place", bound=Hashable)


class Owner(StrEnum):
    """Whose an object is, seen by itself."""

    USER = "user"
    """The user's running code or function, or an instance of a class that the script defines."""
    LIBRARY = "library"
    """The same of a library, or an instance of a class that only a library defines."""
    SHARED = "shared"
    """Of what both build with: a tensor, a container, an object of torch's or of Python's own."""


def is_library_line(where: str) -> bool:
    """Whether a line is a library's, `<torch/optim/optimizer.py>:538`.

    `<<string>>:1` is of code that has no file: the user's, as long as nothing says otherwise.
    """
    return where.startswith("<") and not where.startswith("<<")


def is_outside_users_files(where: str) -> bool:
    """Whether a line is a library's or of code that has no file, which torch.fx and dataclasses generate as well."""
    return where.startswith("<")


def is_built_with(name: str) -> bool:
    """Whether a qualified name is of a package that both the user and libraries build with."""
    return name.partition(".")[0] in BUILT_WITH


def owner_of(obj: Object) -> Owner:
    """Whose one object is, by its own line, type and name."""
    if obj.kind == ObjectKind.NAMESPACE:
        return Owner.SHARED if is_built_with(obj.name) else Owner.USER
    if (obj.where and not is_library_line(obj.where)) or obj.type.startswith("__main__."):
        return Owner.USER
    if obj.kind in _TENSORS:
        return Owner.SHARED
    if obj.where:
        return Owner.LIBRARY
    name = obj.name if obj.kind == ObjectKind.CLASS else obj.type
    return Owner.LIBRARY if "." in name and not is_built_with(name) else Owner.SHARED


def is_users(obj: Object) -> bool:
    """Whether an object is the user's."""
    return owner_of(obj) == Owner.USER


def is_library_state(obj: Object) -> bool:
    """Whether it is a library's frame or function, or state that torch keeps for itself.

    An instance of a class that a library merely defines is not.
    """
    of_torch = obj.kind == ObjectKind.INSTANCE and obj.type.startswith(LIBRARY_STATE)
    return of_torch or is_outside_users_files(obj.where)


class Climb(Generic[Place]):
    """A walk up from one place, the nearest first, that goes on where its caller says so and asks no place twice.

    A place is an object's index, with whatever else tells two ways to it apart. Iterating gives the places in turn;
    where more than `limit` would be asked, it ends and is not `complete`.
    """

    def __init__(self, start: Place, limit: int = MAX_ASKED) -> None:
        self._limit = limit
        self._waiting = deque([start])
        self.by: dict[Place, int] = {start: -1}
        """Each place with the reference by which it holds the one below."""

    def __iter__(self) -> Iterator[Place]:
        while self._waiting and len(self.by) < self._limit:
            yield self._waiting.popleft()

    def go_on(self, place: Place, reference: int) -> None:
        """Asks a place, too, which holds what is asked now by this reference."""
        if place not in self.by:
            self.by[place] = reference
            self._waiting.append(place)

    @property
    def complete(self) -> bool:
        """Whether every place was asked."""
        return not self._waiting


def belongs_to_library(graph: HeapGraph, index: int) -> bool:
    """Whether it is a library's own state, or a container or Work that only a library's objects and frames have."""
    passed = (ObjectKind.CONTAINER, ObjectKind.WORK)
    if graph.object(index).kind not in passed:
        return is_library_state(graph.object(index))
    owners: set[int] = set()
    climb = Climb(index)
    for here in climb:
        if graph.root[here]:
            owners.add(here)
        for reference in graph.into(here).tolist():
            holder = int(graph.holder[reference])
            if graph.object(holder).kind in passed:
                climb.go_on(holder, reference)
            else:
                owners.add(holder)
    return bool(owners) and all(is_library_state(graph.object(owner)) for owner in owners)


@dataclass(frozen=True)
class Reach:
    """How the user's code reaches an object."""

    own: bool
    """By a variable, or by an object of its own, with nothing of a library's in between."""
    handles: tuple[int, ...]
    """Else the references of its own to the objects of libraries that lead there."""


def reach_of(graph: HeapGraph, index: int) -> Reach:
    """All ways up from an object, each to the first that is the user's."""
    handles = set()
    climb = Climb((index, -1))
    for here, handle in climb:
        owner = owner_of(graph.object(here))
        if owner == Owner.USER:
            if handle < 0:
                return Reach(True, ())
            handles.add(handle)
            continue
        library = owner == Owner.LIBRARY
        for above in graph.into(here).tolist():
            if graph.reference(above).kind != ReferenceKind.OPERAND or not (library or handle >= 0):
                climb.go_on((int(graph.holder[above]), above if library else handle), above)
    return Reach(False, tuple(sorted(handles)) if climb.complete else ())


def users_side(graph: HeapGraph) -> Mask:
    """Which objects a walk from the user's own frames and modules reaches."""
    named = (RootKind.FRAME, RootKind.CALLBACK, RootKind.MODULE)
    roots = [int(index) for index in graph.roots if ROOTS[graph.root[index]] in named]
    starts = [index for index in roots if is_users(graph.object(index))]
    return reachable(len(graph), graph.holder, graph.held, np.asarray(starts, dtype=np.int64))
