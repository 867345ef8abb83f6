"""The pruned heap in the words of the user's code: every reference named, with the line that makes it."""

from __future__ import annotations

import collections
import gc
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from leakscope.capture.heap.fold import Folds, Style
from leakscope.capture.heap.native.autograd import TensorBase, is_grad_node
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.prune import PrunedHeap
from leakscope.capture.heap.python.named import ATTRIBUTE, CLOSURE, Named, key_text
from leakscope.capture.heap.python.referents import reader_of, slots
from leakscope.capture.heap.raw_types import instance_dict, mro
from leakscope.capture.heap.refcounts import RefcountTable, References
from leakscope.capture.heap.reference_lines import (
    line_of_class,
    line_of_instance,
    line_of_namespace,
    line_of_variable,
)
from leakscope.graph.model import ReferenceKind

_MEMORY = ReferenceKind.MEMORY, "storage"
_UNNAMED = ReferenceKind.UNNAMED, "(unnamed)"
_BUFFER = ReferenceKind.BUFFER
_HOOK_DICTS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a tensor's C++ part that gc shows."""


class NamedReference(NamedTuple):
    """One reference of the pruned heap, between indexes."""

    holder: int
    held: int
    kind: ReferenceKind
    name: str
    """As code writes it."""
    where: str
    """`train.py:12`, the line that makes it, "" where none shows."""


class ReferenceNames:
    """Names every reference of the pruned heap, the containers folded that code does not show."""

    def __init__(self, native: NativeReferences, refcounts: RefcountTable, pruned: PrunedHeap) -> None:
        self._objects = native.sweep.objects
        self._extra = native.extra
        self._refcounts = refcounts
        self._pruned = pruned
        self._groups = _by_holder(pruned.references)
        self._folds = Folds(self._objects, refcounts, pruned, self._groups)

    def stands_for(self, index: int) -> int:
        """Index of the object that one is folded into, its own where it is not folded."""
        return self._folds.stands_for(index)

    def references(self) -> list[NamedReference]:
        """Every reference but those inside of folded objects."""
        inner, stands_for = self._folds.inner, self._folds.stands_for
        return [
            NamedReference(stands_for(holder), stands_for(held), kind, name, self._where(holder, held, kind, name))
            for group in self._groups
            for holder, held, kind, name in self._named(group)
            if (holder, held) not in inner
        ]

    def _named(self, group: Sequence[int]) -> Iterator[tuple[int, int, ReferenceKind, str]]:
        """(holder, held, kind, name) of the references of one holder."""
        references, objects = self._pruned.references, self._refcounts.objects
        holder = int(references.holder[group[0]])
        plain = [place for place in group if references.extra[place] < 0 and references.held[place] < objects]
        names = self._names_in(holder, {int(references.held[place]) for place in plain}) if plain else {}
        used: dict[int, int] = defaultdict(int)
        for place in group:
            held = int(references.held[place])
            extra = int(references.extra[place])
            if extra >= 0:
                kind, name = self._extra.kind[extra], self._extra.name[extra]
            elif held >= objects:
                kind, name = _MEMORY
            elif names.get(held):
                choices = names[held]
                kind, name = choices[used[held] % len(choices)]
                used[held] += 1
            else:
                kind, name = _UNNAMED
            yield holder, held, kind, name

    def _names_in(self, holder: int, wanted: set[int]) -> dict[int, list[tuple[ReferenceKind, str]]]:
        """Every name that the holder has for each of the wanted."""
        addresses = {id(self._objects[h]): h for h in wanted}
        for cell in [h for h in wanted if type(self._objects[h]) is types.CellType]:
            try:  # a frame's locals are given as values, its references are to their cells
                addresses.setdefault(id(self._objects[cell].cell_contents), cell)
            except ValueError:
                continue
        names: dict[int, list[tuple[ReferenceKind, str]]] = {}
        for kind, name, referent in self._read(holder):
            index = addresses.get(id(referent))
            if index is not None:
                names.setdefault(index, []).append((kind, name))
        return names

    def _read(self, holder: int) -> Iterator[Named]:
        """What an object holds, in the style of what it is folded into."""
        obj = self._objects[holder]
        style = self._folds.style.get(holder)
        if holder in self._pruned.modules:
            return _globals(obj)
        if style is None:
            return _referents(obj, type(obj), has_folded_dict=holder in self._folds.with_dict)
        if style is Style.ATTRIBUTE:
            return _attributes(obj)
        if style is Style.MRO:
            return ((ATTRIBUTE, ".__mro__", base) for base in obj)
        if style is Style.CLOSURE:
            return _closure(self._objects[self.stands_for(holder)], obj)
        return _children(obj, _BUFFER if style is Style.BUFFER else ATTRIBUTE)

    def _where(self, holder: int, held: int, kind: ReferenceKind, name: str) -> str:
        owner = self._objects[self.stands_for(holder)]
        value = self.stands_for(held)
        last = value < self._refcounts.objects and TensorBase in mro(type(self._objects[value]))
        if kind != ReferenceKind.ATTRIBUTE:
            return line_of_variable(owner, kind, name, last)
        if not name.startswith("."):
            return ""
        if self._folds.is_class(type(owner)):
            return line_of_class(owner, name[1:], last)
        if holder in self._pruned.modules:
            return line_of_namespace(owner, name[1:], last)
        return line_of_instance(type(owner), name[1:], last)


def _by_holder(references: References) -> list[range]:
    """The places of the references of each holder: they stand in the order of their holders."""
    firsts = np.flatnonzero(np.diff(references.holder, prepend=-1)).tolist()
    return [range(first, end) for first, end in pairwise([*firsts, len(references.holder)])]


def _globals(namespace: dict[Any, Any]) -> Iterator[Named]:
    for key, value in dict.items(namespace):
        text = f"[{key_text(key)}]"
        yield ATTRIBUTE, f".{text[2:-2]}" if text.startswith("['") else text, value


def _attributes(values: dict[Any, Any]) -> Iterator[Named]:
    for key, value in dict.items(values):
        yield ATTRIBUTE, f".{key}" if type(key) is str else f"[{key_text(key)}]", value


def _children(values: dict[Any, Any], kind: ReferenceKind) -> Iterator[Named]:
    for key, value in dict.items(values):
        yield kind, f"[{key}]" if str(key).isdigit() else f".{key}", value


def _closure(function: Any, cells: Sequence[Any]) -> Iterator[Named]:
    for name, cell in zip(function.__code__.co_freevars, cells, strict=False):
        yield CLOSURE, f"closure {name}", cell


def _referents(obj: Any, kind: type, has_folded_dict: bool) -> Iterator[Named]:
    reader = reader_of(kind)
    if reader is not None:
        yield from reader(obj)
    elif TensorBase in mro(kind):
        for name in _HOOK_DICTS:
            yield ReferenceKind.HOOK, f".{name}", TensorBase.__dict__[name].__get__(obj)
    elif is_grad_node(kind):  # gc shows the hook dicts of a node that Python alone owns; their sort is not told
        for held in gc.get_referents(obj):
            if (type(held) is dict or type(held) is collections.OrderedDict) and all(type(key) is int for key in held):
                yield ReferenceKind.HOOK, "hooks", held
    yield from slots(obj, kind)
    if not has_folded_dict:  # no dict object of its own was folded: values stand inline
        yield from _attributes(instance_dict(obj, kind) or {})
