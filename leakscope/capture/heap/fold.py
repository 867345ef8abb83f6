"""Which containers does code not show? They are folded into the object that they are part of."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import torch

from leakscope.capture.heap.prune import PrunedHeap
from leakscope.capture.heap.python.referents import CONTEXT_PARTS
from leakscope.capture.heap.raw_types import instance_dict, mro, mro_tuple, type_dict, type_name
from leakscope.capture.heap.refcounts import RefcountTable
from leakscope.capture.torch_private import BUFFERS, MODULE_DICTS
from leakscope.originals import gc

_DEEPEST = 100
"""Containers in each other that are folded, chosen: a cell in a cell in a cell may be a circle."""


_FOLDING = (
    types.CellType, types.GetSetDescriptorType, types.MemberDescriptorType, types.FunctionType, contextvars.Context,
)  # fmt: skip


Group = tuple[int, Sequence[int]]
"""(holder, what it holds), as indexes."""


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
    """The folded containers of a pruned heap; `groups` are what each holder's traversal reports that is kept."""

    def __init__(
        self, objects: Sequence[Any], refcounts: RefcountTable, pruned: PrunedHeap, groups: Sequence[Group]
    ) -> None:
        self._objects, self._refcounts, self._pruned = objects, refcounts, pruned
        self._index = {id(objects[k]): k for k in pruned.objects.tolist() if k < refcounts.objects}
        self._metaclass: dict[int, bool] = {}
        self._foldable: dict[int, bool] = {}
        self._into: dict[int, int] = {}
        self.style: dict[int, Style] = {}
        """By index of a folded container."""
        self.inner: set[tuple[int, int]] = set()
        """(holder, held) of the references that go with the folding."""
        self.with_dict: set[int] = set()
        """Indexes of the objects whose own dict is folded into them."""
        for holder, helds in groups:
            kind = type(objects[holder])
            foldable = self._foldable.get(id(kind))
            if foldable is None:
                foldable = self._foldable[id(kind)] = self._may_fold(kind)
            if foldable:
                self._fold(holder, helds)
        self.final = {index: self._stands_for(index) for index in self._into}
        """Index of each object that is folded to that of the object which it is folded into."""

    def _stands_for(self, index: int) -> int:
        for _ in range(_DEEPEST):
            if index not in self._into:
                break
            index = self._into[index]
        return index

    def _may_fold(self, kind: type) -> bool:
        """Whether anything is folded of what objects of a type hold."""
        return (
            any(kind is folding for folding in _FOLDING)
            or type_name(kind) in CONTEXT_PARTS
            or self.is_class(kind)
            or any("__dict__" in type_dict(base) for base in mro(kind))
        )

    def is_class(self, kind: type) -> bool:
        """Whether instances of a type are classes."""
        known = self._metaclass.get(id(kind))
        if known is None:
            known = self._metaclass[id(kind)] = type in mro(kind)
        return known

    def _fold(self, holder: int, places: Sequence[int]) -> None:
        obj = self._objects[holder]
        kind = type(obj)
        if kind is types.CellType:
            if not self._refcounts.unexplained[holder] and len(places) == 1:
                self._put(holder, holder, places[0])
            return
        if kind is types.GetSetDescriptorType or kind is types.MemberDescriptorType:
            self._fold_descriptor(holder, obj, kind)
            return
        helds = {id(self._objects[h]): h for h in places}
        if kind is contextvars.Context or type_name(kind) in CONTEXT_PARTS:
            for part in helds.values():
                if type_name(type(self._objects[part])) in CONTEXT_PARTS:
                    self._put(holder, part, holder)
            return
        if self.is_class(kind):
            self._fold_mro(holder, obj, helds)
        if kind is types.FunctionType:
            self._fold_closure(holder, obj, helds)
        values = self._own_dict(obj, kind, helds)
        own = helds.get(id(values))
        if own in self._pruned.modules:
            return
        if own is not None:
            self._put(holder, own, holder, Style.ATTRIBUTE)
            self.with_dict.add(holder)
        if values is not None and torch.nn.Module in mro(kind):
            self._fold_module_dicts(holder, values, own)

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

    def _fold_module_dicts(self, holder: int, values: dict[str, Any], own: int | None) -> None:
        """Since Python 3.13 gc shows them as the module's, whether it has a dict of its own or not; before, as that
        dict's.
        """
        for key in MODULE_DICTS:
            child = dict.get(values, key)
            index = self._index.get(id(child))
            if type(child) is dict and index is not None:
                self._into[index] = holder
                self.inner.update((above, index) for above in (holder, own) if above is not None)
                self.style[index] = Style.BUFFER if key == BUFFERS else Style.CHILD

    def _own_dict(self, obj: Any, kind: type, helds: dict[int, int]) -> dict[str, Any] | None:
        """An object's own dict, where any dict is among what it holds."""
        if not any(type(self._objects[h]) is dict for h in helds.values()):
            return None
        own: dict[str, Any] | None = _dict_of_class(obj) if self.is_class(kind) else instance_dict(obj, kind)
        return own


def _dict_of_class(kind: type) -> Any:
    return next(iter(gc.get_referents(type_dict(kind))), None)
