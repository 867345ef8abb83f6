"""What containers do a dataset and the user's modules have, and how are they written there?

Nothing but what stands on the way is touched: in a forked worker each object that is referred to is copied.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from leakscope.capture.heap.raw_types import (
    container_base,
    instance_dict,
    is_leakscopes,
    made_in_python,
    mro_tuple,
    type_dict,
    type_qualname,
)
from leakscope.capture.source.user_source import at, class_attribute_line, is_users, local_line

_DEEPEST = 8
"""References from a beginning that are followed, chosen."""
_MOST = 4_000
"""Objects that are looked into, chosen: some 4 ms."""
_FEW = 32
"""Items up to which a container is looked into, chosen; of a larger one only the length is read."""
LRU_CACHE: Any = type(lru_cache(lambda: None))
_NOT_INTO = (type, ModuleType, FunctionType)
_file = vars(ModuleType)["__dict__"].__get__


@dataclass(frozen=True, eq=False)
class Place:
    """Where something stands, as its user would write it."""

    written: str
    """`self.samples`, `samples`, `Images.cache`."""
    owner: str
    """Qualified name of the class that has it, or the module's name."""
    file: str = ""
    """Where that is written, "" for what is not the user's."""
    name: str = ""
    """What is bound there."""

    def line(self) -> str:
        """`train.py:12`, the line that sets it; "" where the source does not show it."""
        if not self.file:
            return ""
        in_module = self.written.startswith(self.name)
        found = (
            local_line(self.file, "", self.name)
            if in_module
            else class_attribute_line(self.file, self.owner, self.name)
        )
        return at(self.file, found) if found else ""


@dataclass(frozen=True, eq=False)
class Found:
    """A container, or a function's cache."""

    obj: Any
    place: Place


def containers_of(dataset: Any, modules: Sequence[str]) -> Iterator[Found]:
    """Every container that is found from the dataset, then those of these modules."""
    yield from _Walk().from_each(dataset, modules)


def users_modules() -> tuple[str, ...]:
    """Names of the modules of the user's own; to find them touches every module."""
    found = []
    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType and name != "__mp_main__":
            file = _file(module).get("__file__")
            if type(file) is str and is_users(file):
                found.append(name)
    return tuple(found)


class _Walk:
    """One walk, level by level; each object is met once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._waiting: deque[tuple[Any, Place, int]] = deque()

    def from_each(self, dataset: Any, modules: Sequence[str]) -> Iterator[Found]:
        self._add(dataset, Place("self", type_qualname(type(dataset))), 0)
        yield from self._found()
        for name in modules:
            module = sys.modules.get(name)
            names = _file(module) if type(module) is ModuleType else {}
            for key, value in list(names.items()):
                if type(key) is str and not key.startswith("__"):
                    self._add(value, Place(key, name, str(names.get("__file__", "")), key), 1)
        yield from self._found()

    def _add(self, obj: Any, place: Place, deep: int) -> None:
        if id(obj) not in self._seen and len(self._seen) < _MOST and deep <= _DEEPEST and _is_followed(obj):
            self._seen.add(id(obj))
            self._waiting.append((obj, place, deep))

    def _found(self) -> Iterator[Found]:
        while self._waiting:
            obj, place, deep = self._waiting.popleft()
            kind = type(obj)
            base = tuple if kind is tuple else container_base(kind)
            if kind is LRU_CACHE:
                yield Found(obj, place)
            elif base is not None:
                yield Found(obj, place)
                self._items(obj, base, place, deep)
            elif _is_classes(obj, kind):
                self._class_attributes(obj, deep)
            else:
                self._attributes(obj, kind, place, deep)

    def _items(self, container: Any, base: Any, place: Place, deep: int) -> None:
        if base.__len__(container) > _FEW:
            return
        if base is dict:
            for key, value in list(dict.items(container)):
                written = f"[{key!r}]" if type(key) in (str, int) else "[...]"
                self._add(value, _below(place, written), deep + 1)
        else:
            for item in list(base.__iter__(container)):
                self._add(item, _below(place, "[i]"), deep + 1)

    def _attributes(self, obj: Any, kind: type, place: Place, deep: int) -> None:
        for name, value in list((instance_dict(obj, kind) or {}).items()):
            if type(name) is str:
                self._add(value, _attribute(name, kind, place), deep + 1)
        for each in mro_tuple(kind):
            self._add(each, Place(type_qualname(each), type_qualname(each)), deep + 1)

    def _class_attributes(self, kind: type, deep: int) -> None:
        name, file = type_qualname(kind), _file_of(kind)
        for key, value in list(type_dict(kind).items()):
            if type(key) is str and not (key.startswith("__") and key.endswith("__")):
                self._add(value, Place(f"{name}.{key}", name, file, key), deep + 1)


def _is_followed(obj: Any) -> bool:
    """Whether it is a container, a function's cache, a class of the user's or an object of Python code's."""
    kind = type(obj)
    if kind is tuple or kind is LRU_CACHE or container_base(kind) is not None or _is_classes(obj, kind):
        return True
    return made_in_python(kind) and not issubclass(kind, _NOT_INTO) and not is_leakscopes(kind)


def _is_classes(obj: Any, kind: type) -> bool:
    """Whether it is a class of the user's."""
    return issubclass(kind, type) and bool(_file_of(obj))


def _file_of(kind: type) -> str:
    """The file of a class of the user's, "" for any other."""
    module = type_dict(kind).get("__module__")
    found = sys.modules.get(module) if type(module) is str else None
    file = _file(found).get("__file__") if isinstance(found, ModuleType) else None
    return file if type(file) is str and is_users(file) else ""


def _below(place: Place, written: str) -> Place:
    return replace(place, written=f"{place.written}{written}")


def _attribute(name: str, kind: type, place: Place) -> Place:
    """An attribute of an instance: as its own class writes it, wherever the instance stands."""
    file, owner = _file_of(kind), type_qualname(kind)
    if not file:
        return _below(place, f".{name}")
    return Place(f"self.{name}", owner, file, name)
