"""The pruned heap in the words of the user's code: references named, instance dicts and cells folded away."""

from __future__ import annotations

import collections
import contextvars
import gc
import types
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from leakscope.capture.heap.autograd import is_grad_node
from leakscope.capture.heap.describe import class_file, class_qualname
from leakscope.capture.heap.native_references import Explorer
from leakscope.capture.heap.prune import Kept
from leakscope.capture.heap.raw_types import mro, mro_tuple
from leakscope.capture.heap.refcounts import Account
from leakscope.capture.heap.referents import (
    CONTEXT_PARTS,
    Named,
    flags_of,
    instance_dict,
    key_text,
    reader_of,
    slots,
    type_name,
)
from leakscope.capture.source import user_source as source
from leakscope.graph.model import ReferenceKind

_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
Edge = tuple[int, int, str, str, str]
"""(holder, held, kind, name, where)"""


class Names:
    """Names every kept reference, then folds the containers that code does not show."""

    def __init__(self, found: Explorer, books: Account, kept: Kept) -> None:
        self._objects = found.sweep.objects
        self._extra = found.extra
        self._books = books
        self._kept = kept
        self._index = {id(self._objects[k]): k for k in kept.objects.tolist() if k < books.objects}
        self.folded: dict[int, int] = {}
        """Index of a folded object to the object that stands for it."""
        self._style: dict[int, str] = {}
        """How the keys of a folded dict are written: attribute, child."""
        self._inner: set[tuple[int, int]] = set()
        self._with_dict: set[int] = set()
        self._metaclass: dict[int, bool] = {}
        self.unnamed = 0

    def edges(self) -> list[Edge]:
        books, places = self._books, self._kept.references
        order = np.argsort(books.holder[places], kind="stable")
        places = places[order]
        holders = books.holder[places]
        cuts = np.flatnonzero(np.diff(holders)) + 1
        groups = [group.tolist() for group in np.split(places, cuts)] if len(places) else []
        self._fold(groups)
        found: list[Edge] = []
        for group in groups:
            found += self._named(int(books.holder[group[0]]), group)
        return [self._moved(edge) for edge in found if (edge[0], edge[1]) not in self._inner]

    def _moved(self, edge: Edge) -> Edge:
        holder, held, kind, name, where = edge
        return self.stands_for(holder), self.stands_for(held), kind, name, where

    def stands_for(self, index: int) -> int:
        for _ in range(100):  # a cell in a cell in a cell ...
            if index not in self.folded:
                break
            index = self.folded[index]
        return index

    def _fold(self, groups: list[list[int]]) -> None:
        books = self._books
        for group in groups:
            holder = int(books.holder[group[0]])
            obj = self._objects[holder]
            kind = type(obj)
            if kind is types.CellType:
                if not books.unexplained[holder] and len(group) == 1:
                    self._into(holder, holder, int(books.held[group[0]]))
                continue
            helds = {id(self._objects[h]): h for h in books.held[group].tolist() if h < books.objects}
            if kind is contextvars.Context or type_name(kind) in CONTEXT_PARTS:
                for part in helds.values():
                    if type_name(type(self._objects[part])) in CONTEXT_PARTS:
                        self._into(holder, part, holder)
                continue
            if kind is types.GetSetDescriptorType or kind is types.MemberDescriptorType:
                self._fold_descriptor(holder, obj, kind)
                continue
            if self._of_classes(kind):
                self._fold_mro(holder, obj, helds)
            if kind is types.FunctionType:
                closure = types.FunctionType.__dict__["__closure__"].__get__(obj)
                if id(closure) in helds:
                    self._into(holder, helds[id(closure)], holder)
                    self._style[helds[id(closure)]] = "closure"
            own = self._own_dict(obj, kind, helds)
            if own is None or own in self._kept.modules:
                continue
            self._into(holder, own, holder)
            self._style[own] = "attribute"
            self._with_dict.add(holder)
            if torch.nn.Module in mro(kind):
                self._fold_module(holder, own)

    def _into(self, holder: int, folded: int, target: int) -> None:
        if target != folded:
            self.folded[folded] = target
            self._inner.add((holder, target if folded == holder else folded))

    def _of_classes(self, kind: type) -> bool:
        """Whether instances of a type are classes."""
        known = self._metaclass.get(id(kind))
        if known is None:
            known = self._metaclass[id(kind)] = type in mro(kind)
        return known

    def _fold_mro(self, holder: int, obj: Any, helds: dict[int, int]) -> None:
        """A class's `__mro__` begins with the class: the tuple is part of it, and so is the cycle that it closes."""
        place = helds.get(id(mro_tuple(obj)))
        if place is not None and type(self._objects[place]) is tuple and not self._books.unexplained[place]:
            self._into(holder, place, holder)
            self._style[place] = "mro"

    def _fold_descriptor(self, holder: int, obj: Any, kind: Any) -> None:
        """The descriptors of `__dict__`, `__weakref__` and slots lead back to the class whose dict they stand in."""
        owner = self._index.get(id(kind.__dict__["__objclass__"].__get__(obj)))
        if owner is not None and not self._books.unexplained[holder]:
            self._into(holder, holder, owner)

    def _own_dict(self, obj: Any, kind: type, helds: dict[int, int]) -> int | None:
        candidates = [h for h in helds.values() if type(self._objects[h]) is dict]
        if not candidates:
            return None
        if self._of_classes(kind):
            proxy = type.__dict__["__dict__"].__get__(obj)
            own: Any = next(iter(gc.get_referents(proxy)), None)
        else:
            own = instance_dict(obj, kind)
        return helds.get(id(own))

    def _fold_module(self, holder: int, own: int) -> None:
        values = self._objects[own]
        for key in _MODULE_DICTS:
            child = dict.get(values, key)
            index = self._index.get(id(child))
            if type(child) is dict and index is not None:
                self.folded[index] = holder
                self._inner.add((own, index))
                self._style[index] = "buffer" if key == "_buffers" else "child"

    def _named(self, holder: int, group: list[int]) -> Iterator[Edge]:
        books = self._books
        plain = [place for place in group if books.extra[place] < 0 and books.held[place] < books.objects]
        names = self._names_in(holder, {int(books.held[place]) for place in plain}) if plain else {}
        used: dict[int, int] = defaultdict(int)
        for place in group:
            held = int(books.held[place])
            extra = int(books.extra[place])
            if extra >= 0:
                kind, name = self._extra.kind[extra], self._extra.name[extra]
            elif held >= books.objects:
                kind, name = "memory", "storage"
            elif names.get(held):
                choices = names[held]
                kind, name = choices[used[held] % len(choices)]
                used[held] += 1
            else:
                kind, name = "unnamed", "(unnamed)"
                self.unnamed += 1
            yield holder, held, kind, name, self._where(holder, held, kind, name)

    def _names_in(self, holder: int, wanted: set[int]) -> dict[int, list[tuple[str, str]]]:
        addresses = {id(self._objects[h]): h for h in wanted}
        for cell in [h for h in wanted if type(self._objects[h]) is types.CellType]:
            try:  # a frame's locals are given as values, its references are to their cells
                addresses.setdefault(id(self._objects[cell].cell_contents), cell)
            except ValueError:
                continue
        found: dict[int, list[tuple[str, str]]] = {}
        for kind, name, referent in self._read(holder):
            index = addresses.get(id(referent))
            if index is not None:
                found.setdefault(index, []).append((kind, name))
        return found

    def _read(self, holder: int) -> Iterator[Named]:
        obj = self._objects[holder]
        kind = type(obj)
        style = self._style.get(holder)
        if holder in self._kept.modules:
            yield from ((k, f".{n[2:-2]}" if n[:2] == "['" else n, v) for k, n, v in _items(obj))
        elif style == "attribute":
            for key, value in dict.items(obj):
                yield "attribute", f".{key}" if type(key) is str else f"[{key_text(key)}]", value
        elif style in ("child", "buffer"):
            for key, value in dict.items(obj):
                yield (
                    "attribute" if style == "child" else "buffer",
                    f"[{key}]" if str(key).isdigit() else f".{key}",
                    value,
                )
        elif style == "mro":
            for base in obj:
                yield "attribute", ".__mro__", base
        elif style == "closure":
            function = self._objects[self.stands_for(holder)]
            for name, cell in zip(function.__code__.co_freevars, obj, strict=False):
                yield "closure", f"closure {name}", cell
        else:
            yield from self._read_plain(obj, kind)
            if holder not in self._with_dict:  # no dict object of its own was folded: values stand inline
                for key, value in (instance_dict(obj, kind) or {}).items():
                    yield "attribute", f".{key}" if type(key) is str else f"[{key_text(key)}]", value

    @staticmethod
    def _read_plain(obj: Any, kind: type) -> Iterator[Named]:
        reader = reader_of(kind)
        if reader is not None:
            yield from reader(obj)
        elif torch._C.TensorBase in mro(kind):
            for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                yield "hook", f".{name}", torch._C.TensorBase.__dict__[name].__get__(obj)
        elif is_grad_node(kind):  # gc shows the hook dicts of a node that Python alone owns; their sort is not told
            for held in gc.get_referents(obj):
                if (type(held) is dict or type(held) is collections.OrderedDict) and all(
                    type(key) is int for key in held
                ):
                    yield "hook", "hooks", held
        if flags_of(kind) & (1 << 9):  # only types made in Python have slots of their own
            yield from slots(obj, kind)

    def _where(self, holder: int, held: int, kind: str, name: str) -> str:
        owner = self._objects[self.stands_for(holder)]
        # A tensor is held by the assignment made last; a container is made once and then filled.
        value = self.stands_for(held)
        last = value < self._books.objects and torch._C.TensorBase in mro(type(self._objects[value]))
        if kind == ReferenceKind.ATTRIBUTE and name.startswith(".") and self._of_classes(type(owner)):
            written = _written_as(owner)
            filename = class_file(written)
            if source.is_users(filename):
                return _line(filename, source.class_attribute_line(filename, class_qualname(written), name[1:], last))
        elif kind == ReferenceKind.ATTRIBUTE and name.startswith("."):
            written = _written_as(type(owner))
            filename = class_file(written)
            if holder in self._kept.modules:
                filename = owner.get("__file__") if type(owner.get("__file__")) is str else ""
                return (
                    _line(filename, source.local_line(filename, "", name[1:], last))
                    if source.is_users(filename)
                    else ""
                )
            if source.is_users(filename):
                return _line(filename, source.attribute_line(filename, class_qualname(written), name[1:], last))
        elif kind == ReferenceKind.LOCAL and type(owner) is types.FrameType:
            return _local(owner.f_code, name[6:], last)
        elif kind == ReferenceKind.CLOSURE and type(owner) is types.FunctionType and " " in name:
            code = owner.__code__
            outer = code.co_qualname.rpartition(".<locals>.")[0]
            if source.is_users(code.co_filename) and outer:
                bound = source.local_line(code.co_filename, outer, name.split(" ")[1], last, arguments=False)
                return _line(code.co_filename, bound or code.co_firstlineno)  # an argument is bound by whoever calls
        return ""


def _written_as(kind: type) -> type:
    """The user's class for the one that torch makes of an autograd Function (torch/autograd/function.py, FunctionMeta)."""
    forward = type.__dict__["__dict__"].__get__(kind).get("_forward_cls")
    return forward if isinstance(forward, type) else kind


def _items(obj: Any) -> Iterator[Named]:
    for key, value in dict.items(obj):
        yield "attribute", f"[{key_text(key)}]", value


def _local(code: types.CodeType, name: str, last: bool) -> str:
    if not source.is_users(code.co_filename):
        return ""
    return _line(code.co_filename, source.local_line(code.co_filename, code.co_qualname, name, last))


def _line(filename: str, line: int) -> str:
    return source.at(filename, line) if line else ""
