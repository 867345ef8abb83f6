"""Which containers does code not show? They are folded into the object that they are part of."""

from __future__ import annotations

import contextvars
import gc
import types
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import torch

from leakscope.capture.heap.prune import PrunedHeap
from leakscope.capture.heap.python.referents import CONTEXT_PARTS
from leakscope.capture.heap.raw_types import instance_dict, mro, mro_tuple, type_dict, type_name
from leakscope.capture.heap.refcounts import RefcountTable

_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
"""What an nn.Module keeps its own in (torch/nn/modules/module.py)."""
_DEEPEST = 100
"""Containers in each other that are folded, chosen: a cell in a cell in a cell may be a circle."""


class Style(Enum):
    """How what a folded container holds is written."""

    ATTRIBUTE = auto()
    """The dict of an instance or a class: `.name`."""
    CHILD = auto()
    """The dicts of an nn.Module's parameters and modules: `.name` or `[0]`."""
    BUFFER = auto()
    """The dict of an nn.Module's buffers."""
    CLOSURE = auto()
    """The tuple of a function's cells: `closure name`."""
    MRO = auto()
    """The tuple of a class's bases: `.__mro__`."""


class Folds:
    """The folded containers of a pruned heap; `groups` are the places of its references, by holder."""

    def __init__(
        self, objects: Sequence[Any], refcounts: RefcountTable, pruned: PrunedHeap, groups: Sequence[range]
    ) -> None:
        self._objects, self._refcounts, self._pruned = objects, refcounts, pruned
        self._index = {id(objects[k]): k for k in pruned.objects.tolist() if k < refcounts.objects}
        self._metaclass: dict[int, bool] = {}
        self._into: dict[int, int] = {}
        self.style: dict[int, Style] = {}
        """By index of a folded container."""
        self.inner: set[tuple[int, int]] = set()
        """(holder, held) of the references that go with the folding."""
        self.with_dict: set[int] = set()
        """Indexes of the objects whose own dict is folded into them."""
        for group in groups:
            self._fold(group)

    def stands_for(self, index: int) -> int:
        """Index of the object that one is folded into, its own where it is not folded."""
        for _ in range(_DEEPEST):
            if index not in self._into:
                break
            index = self._into[index]
        return index

    def is_class(self, kind: type) -> bool:
        """Whether instances of a type are classes."""
        known = self._metaclass.get(id(kind))
        if known is None:
            known = self._metaclass[id(kind)] = type in mro(kind)
        return known

    def _fold(self, group: range) -> None:
        refcounts, references = self._refcounts, self._pruned.references
        holder = int(references.holder[group[0]])
        obj = self._objects[holder]
        kind = type(obj)
        if kind is types.CellType:
            if not refcounts.unexplained[holder] and len(group) == 1:
                self._put(holder, holder, int(references.held[group[0]]))
            return
        if kind is types.GetSetDescriptorType or kind is types.MemberDescriptorType:
            self._fold_descriptor(holder, obj, kind)
            return
        places = references.held[group.start : group.stop].tolist()
        helds = {id(self._objects[h]): h for h in places if h < refcounts.objects}
        if kind is contextvars.Context or type_name(kind) in CONTEXT_PARTS:
            for part in helds.values():
                if type_name(type(self._objects[part])) in CONTEXT_PARTS:
                    self._put(holder, part, holder)
            return
        if self.is_class(kind):
            self._fold_mro(holder, obj, helds)
        if kind is types.FunctionType:
            self._fold_closure(holder, obj, helds)
        own = self._own_dict(obj, kind, helds)
        if own is not None and own not in self._pruned.modules:
            self._put(holder, own, holder, Style.ATTRIBUTE)
            self.with_dict.add(holder)
            if torch.nn.Module in mro(kind):
                self._fold_module_dicts(holder, own)

    def _put(self, holder: int, folded: int, target: int, style: Style | None = None) -> None:
        """Let one object stand for another; what `holder` holds of it is inside then."""
        if style is not None:
            self.style[folded] = style
        if target != folded:
            self._into[folded] = target
            self.inner.add((holder, target if folded == holder else folded))

    def _fold_closure(self, holder: int, obj: Any, helds: dict[int, int]) -> None:
        place = helds.get(id(types.FunctionType.__dict__["__closure__"].__get__(obj)))
        if place is not None:
            self._put(holder, place, holder, Style.CLOSURE)

    def _fold_mro(self, holder: int, obj: Any, helds: dict[int, int]) -> None:
        """A class's `__mro__` begins with the class: the tuple is part of it, and so is the cycle that it closes."""
        place = helds.get(id(mro_tuple(obj)))
        if place is not None and type(self._objects[place]) is tuple and not self._refcounts.unexplained[place]:
            self._put(holder, place, holder, Style.MRO)

    def _fold_descriptor(self, holder: int, obj: Any, kind: Any) -> None:
        """The descriptors of `__dict__`, `__weakref__` and slots lead back to the class whose dict they stand in."""
        owner = self._index.get(id(kind.__dict__["__objclass__"].__get__(obj)))
        if owner is not None and not self._refcounts.unexplained[holder]:
            self._put(holder, holder, owner)

    def _fold_module_dicts(self, holder: int, own: int) -> None:
        values = self._objects[own]
        for key in _MODULE_DICTS:
            child = dict.get(values, key)
            index = self._index.get(id(child))
            if type(child) is dict and index is not None:
                self._into[index] = holder
                self.inner.add((own, index))
                self.style[index] = Style.BUFFER if key == "_buffers" else Style.CHILD

    def _own_dict(self, obj: Any, kind: type, helds: dict[int, int]) -> int | None:
        """Index of an object's own dict, where that is among what it holds."""
        if not any(type(self._objects[h]) is dict for h in helds.values()):
            return None
        own = _dict_of_class(obj) if self.is_class(kind) else instance_dict(obj, kind)
        return helds.get(id(own))


def _dict_of_class(kind: type) -> Any:
    return next(iter(gc.get_referents(type_dict(kind))), None)
