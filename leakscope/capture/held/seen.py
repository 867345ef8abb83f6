"""Is this one of the objects that were there? Remembered by address; none is kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Set
from typing import Any


class Seen:
    """Some objects, each held weakly where it can be; a grad node takes no weak reference and counts by its address."""

    __slots__ = ("_refs",)

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        self._refs = {id(obj): _weakly(obj) for obj in objects}

    @property
    def addresses(self) -> Set[int]:
        """Of all of them."""
        return self._refs.keys()

    def has(self, obj: Any) -> bool:
        """Whether it is one of them, and not another at the address of one that is gone."""
        ref = self._refs.get(id(obj), _gone)
        return ref is None or ref() is obj

    def any_gone(self) -> bool:
        """Whether one of them is known to be gone."""
        return any(ref is not None and ref() is None for ref in self._refs.values())


def _gone() -> None:
    """Stands for a weak reference to nothing."""


def _weakly(obj: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(obj)
    except TypeError:
        return None
