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
"""Types whose attributes torch sets, not the script."""
MAX_VISITED = 1000
"""Maximum objects visited on the way up from one object; beyond it the owner is unknown."""
_TENSORS = (ObjectKind.STORAGE, ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE, ObjectKind.SAVED_TENSOR)

Place = TypeVar("Place", bound=Hashable)


class Owner(StrEnum):
    """Whose an object is, judged by itself."""

    USER = "user"
    """The user's code or function, or an instance of a class that the script defines."""
    LIBRARY = "library"
    """A library's code or function, or an instance of a class that only a library defines."""
    SHARED = "shared"
    """Building blocks of both: tensors, containers, objects of torch or Python."""


def is_library_line(where: str) -> bool:
    """Whether a line is in a library, `<torch/optim/optimizer.py>:538`.

    `<<string>>:1` is of code without a file, which counts as the user's unless known otherwise.
    """
    return where.startswith("<") and not where.startswith("<<")


def is_outside_users_files(where: str) -> bool:
    """Whether a line is in a library or in code without a file, which torch.fx and dataclasses generate as well."""
    return where.startswith("<")


def is_built_with(name: str) -> bool:
    """Whether a qualified name is of a package that both the user and libraries build with."""
    return name.partition(".")[0] in BUILT_WITH


def owner_of(obj: Object) -> Owner:
    """Whose one object is, by its line, type and name."""
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
    """Whether it is a library's frame or function, or internal state of torch.

    An instance of a class that a library merely defines is not.
    """
    of_torch = obj.kind == ObjectKind.INSTANCE and obj.type.startswith(LIBRARY_STATE)
    return of_torch or is_outside_users_files(obj.where)


class Climb(Generic[Place]):
    """A walk up the referrers, nearest first, that continues where its caller says so and visits no place twice.

    A place is the index of an object, plus what distinguishes two ways to it. Iteration yields the places in turn;
    after `limit` places it ends and is not `complete`.
    """

    def __init__(self, start: Place, limit: int = MAX_VISITED) -> None:
        self._limit = limit
        self._waiting = deque([start])
        self.by: dict[Place, int] = {start: -1}
        """Each place, mapped to the reference by which it holds the one below."""

    def __iter__(self) -> Iterator[Place]:
        while self._waiting and len(self.by) < self._limit:
            yield self._waiting.popleft()

    def go_on(self, place: Place, reference: int) -> None:
        """Also visit a place that holds the current one by this reference."""
        if place not in self.by:
            self.by[place] = reference
            self._waiting.append(place)

    @property
    def complete(self) -> bool:
        """Whether every place was visited."""
        return not self._waiting


def belongs_to_library(graph: HeapGraph, index: int) -> bool:
    """Whether it is a library's internal state, or a container or Work that only a library's objects
    and frames hold.
    """
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
    """By a variable or an object of the user, with no library object in between."""
    handles: tuple[int, ...]
    """Otherwise, the user's references to library objects that lead to it."""


def reach_of(graph: HeapGraph, index: int) -> Reach:
    """Follow all referrers of an object up to the first of the user's on each way."""
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
    """Which objects are reachable from the user's frames and modules."""
    named = (RootKind.FRAME, RootKind.CALLBACK, RootKind.MODULE)
    roots = [int(index) for index in graph.roots if ROOTS[graph.root[index]] in named]
    starts = [index for index in roots if is_users(graph.object(index))]
    return reachable(len(graph), graph.holder, graph.held, np.asarray(starts, dtype=np.int64))
