"""By what names would the user begin to say what holds a tensor?"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

Given = tuple[tuple[str, weakref.ref[object]], ...]
"""Each name with what it stands for, which is not kept alive."""


def weakly(roots: Mapping[str, object]) -> Given:
    """The roots with their names, none of them kept alive.

    Raises TypeError for what takes no weak reference, or is named by no text.
    """
    return tuple((_text(name), _weak(name, root)) for name, root in roots.items())


def _text(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"roots: {name!r} is no name; give the text that the object is to be written as")
    return name


def _weak(name: str, root: object) -> weakref.ref[object]:
    try:
        return weakref.ref(root)
    except TypeError:
        kind = type(root).__name__
        raise TypeError(f"roots: a {kind} cannot be held weakly; give the object that holds {name!r}") from None
