"""How is a reference named? As code would write it, and without calling anybody's code."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from leakscope.capture.heap.raw_types import type_dict, type_name
from leakscope.graph.model import ReferenceKind

Named = tuple[ReferenceKind, str, Any]
"""(how it is held, the name as written in code, what is held)"""
Reader = Callable[[Any], Iterator[Named]]
"""Names what one object holds. It runs no user code: only C slots of exact types and their bases."""

# Bound once: up to Python 3.11 an enum's member costs a third of a microsecond, and readers yield millions.
ITEM, ATTRIBUTE = ReferenceKind.ITEM, ReferenceKind.ATTRIBUTE
LOCAL, CLOSURE = ReferenceKind.LOCAL, ReferenceKind.CLOSURE

_MAX_KEY_LENGTH = 40
"""Characters of a key that a name shows."""
_MAX_KEY_ITEMS = 4
"""Items of a tuple that is a key, more of which a name does not show."""


def key_text(key: Any) -> str:
    """A dict key as code shows it, without calling anybody's `__repr__`."""
    kind = type(key)
    if kind is str:
        return repr(key if len(key) <= _MAX_KEY_LENGTH else key[: _MAX_KEY_LENGTH - 3] + "...")
    if any(kind is plain for plain in (int, bool, float, bytes, type(None))):
        return repr(key)
    if kind is tuple:
        inner = ", ".join(key_text(item) for item in tuple.__iter__(key)) if len(key) <= _MAX_KEY_ITEMS else "..."
        return f"({inner})"
    return f"<{type_name(kind)}>"


def c_fields(obj: Any, base: type, hidden: str | None = None) -> Iterator[Named]:
    """What stands in the C fields that one base has added, but for names that begin with `hidden`."""
    for name, descriptor in type_dict(base).items():
        if type(descriptor) is types.MemberDescriptorType and not (hidden and name.startswith(hidden)):
            try:
                yield ATTRIBUTE, f".{name}", descriptor.__get__(obj)
            except AttributeError:  # never set
                continue
