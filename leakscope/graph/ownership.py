"""Whose is an object: the user's, a library's, or one of what both build with; and by what does the user reach a library's?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.graph.model import HeapGraph, Object, ObjectKind, ReferenceKind
from leakscope.graph.paths import BUILT_WITH

_TENSORS = (ObjectKind.STORAGE, ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE, ObjectKind.SAVED_TENSOR)
_MOST = 1000
"""Objects asked on the way up from one object."""


def is_users(found: Object) -> bool:
    """Whether it is the user's: its running code or function, or an instance of a class that the script defines."""
    if found.kind == ObjectKind.NAMESPACE:
        return found.name.partition(".")[0] not in BUILT_WITH
    written = bool(found.where) and (not found.where.startswith("<") or found.where.startswith("<<"))
    return written or found.type.startswith("__main__.")


def is_of_library(found: Object) -> bool:
    """Whether it is a library's: its running code or function, or an instance of a class that only a library defines."""
    if is_users(found) or found.kind in ("namespace", *_TENSORS):
        return False
    if found.where:
        return True
    package, dot, _ = (found.name if found.kind == ObjectKind.CLASS else found.type).partition(".")
    return bool(dot) and package not in BUILT_WITH


@dataclass(frozen=True)
class Reach:
    """How the user's code reaches an object."""

    own: bool
    """By a variable, or by an object of its own, with nothing of a library's in between."""
    handles: tuple[int, ...]
    """Else the references of its own to the objects of libraries that lead there."""


def reach_of(graph: HeapGraph, index: int) -> Reach:
    """All ways up from an object, each to the first that is the user's."""
    waiting, seen, handles = [(index, -1)], {(index, -1)}, set()
    while waiting and len(seen) < _MOST:
        here, handle = waiting.pop(0)
        found = graph.object(here)
        if is_users(found):
            if handle < 0:
                return Reach(True, ())
            handles.add(handle)
            continue
        library = is_of_library(found)
        for above in graph.into(here).tolist():
            if graph.reference(above).kind != ReferenceKind.OPERAND or not (library or handle >= 0):
                step = (int(graph.holder[above]), above if library else handle)
                if step not in seen:
                    seen.add(step)
                    waiting.append(step)
    return Reach(False, () if waiting else tuple(sorted(handles)))
