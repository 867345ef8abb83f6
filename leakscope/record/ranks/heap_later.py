"""How is a look kept without its heap, which may be asked for all the same?"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from leakscope.errors import Unreadable
from leakscope.files import read_json
from leakscope.graph.as_json import from_json
from leakscope.graph.model import HeapGraph
from leakscope.originals import Path
from leakscope.record.folder import look_name
from leakscope.record.model import Rank

_COLUMNS = frozenset(field.name for field in fields(HeapGraph))


class HeapLater(HeapGraph):
    """A heap graph that is read from the file of its look when something of it is asked for, and kept from then on.

    What is asked raises Unreadable where the file is gone by then, or has become another.
    """

    def __init__(self, file: Path) -> None:
        self.__dict__["_file"] = file

    def __getattr__(self, name: str) -> Any:
        if name not in _COLUMNS:
            raise AttributeError(name)
        file: Path = self.__dict__["_file"]
        try:
            self.__dict__.update(vars(from_json(read_json(file)["heap"])))
        except (Unreadable, ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"{file} cannot be read any more: {error}") from None
        return self.__dict__[name]


def without_heaps(rank: Rank, folder: Path) -> Rank:
    """A rank that was read from a folder, the heaps of its looks to be read again by who asks for them."""
    looks = tuple(replace(look, heap=HeapLater(folder / look_name(look))) for look in rank.looks)
    return replace(rank, looks=looks)
