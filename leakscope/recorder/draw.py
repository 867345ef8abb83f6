"""The drawing of what refers to an object, through autograd and running frames too."""

from __future__ import annotations

from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch

from leakscope.graph.model import ReferenceKind
from leakscope.heap.garbage import ExplainedHeap
from leakscope.heap.naming import named_referents
from leakscope.heap.snapshot import LookContext, look
from leakscope.heap.to_graph import describe, namespace
from leakscope.originals import gc
from leakscope.process.raw_types import instance_dict, is_leakscopes, is_of_leakscope
from leakscope.report.drawing import Arrow, Box, Drawing, Role, merged
from leakscope.run.rows import Occasion

_MEMORY = "tensor memory"
_OF_CPP = (
    ReferenceKind.GRAD_GRAPH,
    ReferenceKind.SAVED,
    ReferenceKind.HOOK,
    ReferenceKind.COMM,
    ReferenceKind.MEMORY,
)


def referrers_drawing(obj: object, max_depth: int, too_many: int) -> Drawing:
    """What refers to an object, and of a tensor also to its memory.

    It is made of one snapshot: nothing is collected, no code of the user's runs, and leakscope's own references are
    left out.
    """
    request = _Request(obj, max_depth, too_many)
    look(0, Occasion.STEP, LookContext(hidden=(request,), explained=request.draw))
    request.obj = None
    assert request.drawing is not None
    return request.drawing


class _Request:
    """The arguments, by which leakscope itself holds the object."""

    __slots__ = ("drawing", "max_depth", "obj", "too_many")

    def __init__(self, obj: object, max_depth: int, too_many: int) -> None:
        self.obj, self.max_depth, self.too_many = obj, max_depth, too_many
        self.drawing: Drawing | None = None

    def draw(self, heap: ExplainedHeap) -> None:
        """Draw while the process stands still."""
        referrers = _Referrers(heap)
        starts = [self.obj, *referrers.memory_of(self.obj)]
        boxes = [referrers.box(obj, Role.START) for obj in starts]
        place = {id(obj): number for number, obj in enumerate(starts)}
        arrows: list[Arrow] = []
        level = starts
        for _ in range(self.max_depth):
            above: list[object] = []
            for target in level:
                if type(target) is ModuleType:  # all of a program leads to its modules
                    continue
                found = referrers.of(target)
                for source in found[: self.too_many]:
                    if id(source) not in place:
                        place[id(source)] = len(boxes)
                        boxes.append(referrers.box(source))
                        above.append(source)
                    arrows.append(referrers.arrow(source, target, place))
                if len(found) > self.too_many:
                    arrows.append(Arrow(len(boxes), place[id(target)], ""))
                    boxes.append(Box(f"{len(found) - self.too_many} more referrers"))
            level = above
        self.drawing = merged(Drawing(tuple(boxes), tuple(arrows)))


class _Memory:
    """Stands for a storage, which is no object of Python's."""

    def __init__(self, index: int, size: int) -> None:
        self.index, self.size = index, size


class _Referrers:
    """The references of one snapshot, and their names."""

    def __init__(self, heap: ExplainedHeap) -> None:
        self._heap, self._objects = heap, heap.native.sweep.objects
        self._names: dict[tuple[int, int], tuple[ReferenceKind, str]] = {}

    def memory_of(self, obj: object) -> list[_Memory]:
        """The storage of a tensor."""
        native = self._heap.native
        index, first = native.find(id(obj)), self._heap.refcounts.objects
        for place, storage in enumerate(native.storages.values()):
            if index in storage.holders:
                return [_Memory(first + place, storage.bytes)]
        return []

    def of(self, target: object) -> list[Any]:
        """As `gc.get_referrers` of one object, with what gc does not see."""
        find = self._heap.native.find
        index = target.index if type(target) is _Memory else find(id(target))
        if index < 0:
            # no snapshot has a number for what gc does not track, as `object()`; its referrers are older than that
            return [holder for holder in gc.get_referrers(target) if find(id(holder)) >= 0 and not _is_ours(holder)]
        if index in self._heap.running:
            return []
        into = self._heap.refcounts.into(np.asarray([index]))
        extra = self._heap.native.extra
        found: dict[int, Any] = {}
        for holder, known in zip(into.holder.tolist(), into.extra.tolist(), strict=True):
            source = self._objects[holder]
            if _is_ours(source) or (type(source) is torch.UntypedStorage and not self._is_held(holder)):
                continue
            found[holder] = source
            if known >= 0:
                self._names[id(source), id(target)] = extra.kind[known], extra.name[known]
            elif type(target) is _Memory:
                self._names[id(source), id(target)] = ReferenceKind.MEMORY, "storage"
        return list(found.values())

    def _is_held(self, index: int) -> bool:
        """Whether anything refers to it: what Python has of a storage lives as long as that, once it was asked for."""
        return len(self._heap.refcounts.into(np.asarray([index])).holder) > 0

    def arrow(self, source: object, target: object, place: dict[int, int]) -> Arrow:
        """The reference from one object to another."""
        kind, name = self._names.get((id(source), id(target))) or _named(source, target)
        return Arrow(place[id(source)], place[id(target)], name, is_native=kind in _OF_CPP)

    def box(self, obj: object, role: Role = Role.PLAIN) -> Box:
        """What an object is."""
        if type(obj) is _Memory:
            return Box(_MEMORY, role=Role.MEMORY, is_memory=True, bytes=obj.size)
        index = self._heap.native.find(id(obj))
        modules = self._heap.pruned.modules
        if index in modules:
            return Box(namespace(modules[index]).label, role=role)
        described = describe(obj, self._heap.native.types)
        return Box(described.label, described.where, role)


def _named(source: object, target: object) -> tuple[ReferenceKind | str, str]:
    """The name that a Python object has for another; "" where no reader knows."""
    if type(target) is dict and instance_dict(source, type(source)) is target:
        return ReferenceKind.ATTRIBUTE, ".__dict__"
    named = named_referents(source, type(source), has_folded_dict=False)
    return next(((kind, name) for kind, name, held in named if held is target), ("", ""))


def _is_ours(obj: object) -> bool:
    if type(obj) is FrameType:
        return is_of_leakscope(obj.f_globals.get("__name__"))
    return is_leakscopes(type(obj))
