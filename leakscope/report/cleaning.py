"""What comes from the run, without the characters that no terminal, page or XML file should see."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from leakscope.graph.model import HeapGraph
from leakscope.record.model import ROWS, Rank, Step

T = TypeVar("T")

UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that could move a cursor, reorder a line or break XML."""


def cleaned(value: T) -> T:
    """The same data with every character that no terminal or XML file should see written as an escape.

    Line feeds and tabs stay. What may be long and is not printed is passed on as it is: heap graphs, steps (which
    hold no text), and the rows of a rank (`record.model.ROWS`), which their reader cleans.
    """
    return _cleaned(value)  # type: ignore[no-any-return]


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() and value.isprintable() else "".join(map(_character, value))
    if isinstance(value, (tuple, list)):
        return type(value)(_cleaned(item) for item in value)
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, (HeapGraph, Step, type)):
        left = ROWS if isinstance(value, Rank) else frozenset()
        names = [f.name for f in fields(value) if f.name not in left]
        return replace(value, **{name: _cleaned(getattr(value, name)) for name in names})
    return value


def _character(character: str) -> str:
    printable = unicodedata.category(character) not in UNPRINTABLE and character not in "\ufffe\uffff"
    if printable or character in "\n\t":
        return character
    return character.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    """The text with each run of spaces and line ends as one space."""
    return " ".join(text.split())
