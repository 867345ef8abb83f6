"""Which items has a container, which of them are the newest, and what is such an item called?"""

from __future__ import annotations

import collections
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

from leakscope.capture.heap.python.referents import items_of
from leakscope.capture.heap.raw_types import container_base, made_in_python, type_name

_LOOKED_AT = 8
"""Of the newest items, chosen."""
_ALL_OF = 32
"""Held objects up to which all are looked at, chosen."""
_SOME_OF = 16
"""Of more than that, chosen."""
_DEEPEST = 2
"""Containers in each other that a phrase names, chosen."""
_NAMED = 3
"""Types that a phrase names of one container's items, the most frequent ones."""

Item = tuple[Any, ...]
"""An item of a container; of a dict its key and its value."""


def newest_items(container: Any, base: Any, gained: int) -> list[Item]:
    """Some of the items that were added last; of a set, which has no order, any."""
    many = min(gained, _LOOKED_AT)
    if base is list:
        last = list.__len__(container) - 1
        return [(item,) for k in range(many) for item in _at(container, last - k * gained // many)]
    if base is dict:
        return list(islice(reversed(dict.items(container)), many))
    if base is collections.deque:
        return [(item,) for item in list(islice(collections.deque.__reversed__(container), many))]
    return [(item,) for item in list(islice(set.__iter__(container), many))]


def _at(items: Any, place: int) -> list[Any]:
    """The item of a list at a place; none where another thread has taken it out."""
    return list.__getitem__(items, slice(max(place, 0), max(place, 0) + 1))


def oldest_items(container: Any, base: Any, count: int) -> list[Item]:
    """Some of the first `count` items; of a set, which has no order, any."""
    many = min(count, _LOOKED_AT)
    if base is list:
        return [(item,) for k in range(many) for item in _at(container, k * count // many)]
    if base is dict:
        return list(islice(dict.items(container), many))
    return [(item,) for item in list(islice(base.__iter__(container), many))]


def some_items(held: Sequence[Any]) -> Sequence[Any]:
    """All, or of very many some, as far from each other as they can be."""
    return held if len(held) <= _ALL_OF else held[:: len(held) // _SOME_OF]


def item_text(items: Sequence[Item]) -> str:
    """What most of the items are: `str`, `dict of str and float`, `list of 512 float`."""
    texts = [_text(item[-1], _DEEPEST) if _tells(item[-1]) else _text(item[0], 0) for item in items]
    return Counter(texts).most_common(1)[0][0] if texts else ""


def _tells(value: Any) -> bool:
    """Whether a value says more than its key: a flag does not."""
    return value is not None and type(value) is not bool


def _text(obj: Any, deep: int) -> str:
    kind = type(obj)
    name = type_name(kind)
    base = tuple if kind is tuple else container_base(kind)
    if base is None or deep == 0 or (kind is not base and made_in_python(kind)):
        return name
    values = dict.values(obj) if base is dict else items_of(obj) if base is tuple else base.__iter__(obj)
    inner = Counter(_text(value, deep - 1) for value in list(islice(values, _ALL_OF)))
    if not inner:
        return name
    words = [word for word, _ in inner.most_common(_NAMED)]
    count = base.__len__(obj)
    many = f"{count:,} " if len(words) == 1 and base is list and count > _NAMED else ""
    return f"{name} of {many}{_listed(words)}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
