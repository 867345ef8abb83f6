"""What did these do before the script put its own in their place, as tests do? Imported ahead of the script."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gc
else:
    import gc as _gc

    # under its own name, so that what is written with it reads as ever
    gc = ModuleType("gc", _gc.__doc__)
    vars(gc).update(vars(_gc))

FROZEN_BY_PYTHON = 1_000 if sys.version_info[:2] == (3, 12) else 0
"""Objects that Python itself has frozen when it starts, at most: 375 in 3.12.1."""

_get_referents = gc.get_referents
_namespace = vars(ModuleType)["__dict__"].__get__


def _referents_that_live(*objects: Any) -> list[Any]:
    """`gc.get_referents`, but of module `_asyncio` only its dict.

    Before 3.12.6 the module shows its free list of iterators too: to refer to those, which are dead, frees them a
    second time, and no collection ends from then on (CPython gh-122695).
    """
    found: list[Any] = []
    for obj in objects:
        if issubclass(type(obj), ModuleType):
            names = _namespace(obj) or {}
            name = names.get("__name__")
            if type(name) is str and name == "_asyncio":
                found.append(names)
                continue
        found += _get_referents(obj)
    return found


def referents_in_c(objects: list[Any]) -> Callable[..., list[Any]]:
    """`gc.get_referents` for these objects, without Python code of ours that would let another thread go on."""
    return gc.get_referents if any(issubclass(type(obj), ModuleType) for obj in objects) else _get_referents


if (3, 12) <= sys.version_info < (3, 12, 6):
    gc.get_referents = _referents_that_live

open_file = open

__all__ = ["FROZEN_BY_PYTHON", "gc", "open_file", "referents_in_c"]
