"""Escapes characters from the run that could harm a terminal, a page or an XML file."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from leakscope.graph.model import HeapGraph
from leakscope.run.model import ROWS, Rank, Step

T = TypeVar("T")

UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that could move a cursor, reorder a line or break XML."""


def cleaned(value: T) -> T:
    """Copy data with every character that a terminal or XML file must not contain replaced by an escape.

    Line feeds and tabs stay. Large data that is not printed is passed on unchanged: heap graphs, steps (which contain
    no text), and the rows of a rank (`run.model.ROWS`), which their reader cleans.
    """
    return _cleaned(value)  # type: ignore[no-any-return]


def _cleaned(value: Any) -> Any:
    """Returns values without such characters unchanged instead of copying them, which is nearly all of a large run."""
    if isinstance(value, str):
        return value if value.isascii() and value.isprintable() else "".join(map(_character, value))
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, (tuple, list)):
        items = [_cleaned(item) for item in value]
        return value if _are_same(items, value) else type(value)(items)
    if isinstance(value, Mapping):
        pairs = {_cleaned(key): _cleaned(item) for key, item in value.items()}
        return value if _are_same(pairs, value) and _are_same(pairs.values(), value.values()) else pairs
    kind: Any = type(value)
    was = {name: getattr(value, name) for name in _names(kind)}
    changed = {name: now for name, before in was.items() if (now := _cleaned(before)) is not before}
    return replace(value, **changed) if changed else value


def _are_same(now: Collection[object], before: Collection[object]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass to clean."""
    if issubclass(kind, (HeapGraph, Step)) or not is_dataclass(kind):
        return ()
    left = ROWS if kind is Rank else frozenset()
    return tuple(f.name for f in fields(kind) if f.name not in left)


def _character(character: str) -> str:
    printable = unicodedata.category(character) not in UNPRINTABLE and character not in "\ufffe\uffff"
    if printable or character in "\n\t":
        return character
    return character.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    """Collapse whitespace and line breaks into single spaces."""
    return " ".join(text.split())
