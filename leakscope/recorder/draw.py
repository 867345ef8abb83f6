"""The picture that objgraph draws of an object's referrers, with those of autograd and running frames."""

from __future__ import annotations

import importlib.util
import re
from io import StringIO
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from leakscope.graph.model import ReferenceKind
from leakscope.heap.liveness import Liveness
from leakscope.heap.naming import named_referents
from leakscope.heap.snapshot import SnapshotContext, take_heap_snapshot
from leakscope.heap.to_graph import describe, namespace
from leakscope.originals import gc
from leakscope.process.raw_types import instance_dict, is_leakscopes, is_of_leakscope, mro, type_dict
from leakscope.run.rows import Occasion

_MEMORY = "tensor memory"
_OF_CPP = (
    ReferenceKind.GRAD_GRAPH,
    ReferenceKind.SAVED,
    ReferenceKind.HOOK,
    ReferenceKind.COMM,
    ReferenceKind.MEMORY,
)
_COLOUR = "#b03060"
"""Colour of references that gc does not see."""
_MAX_LABEL = 50
"""Maximum characters of a name on an arrow. Heuristic."""


def referrers_as_dot(obj: object, max_depth: int, too_many: int) -> str:
    """Return objgraph's graph of the referrers of an object as DOT; for a tensor, also of its memory.

    It is drawn from one heap snapshot: nothing is collected, no user code runs, and leakscope's own references are left
    out. Boxes are numbered from 1.
    """
    request = _DrawRequest(obj, max_depth, too_many)
    take_heap_snapshot(0, Occasion.STEP, SnapshotContext(hidden=(request,), explained=request.draw))
    request.obj = None
    numbers: dict[str, str] = {}
    return re.sub(r"\bo\d+", lambda found: numbers.setdefault(found[0], f"o{len(numbers) + 1}"), request.dot)


class _DrawRequest:
    """The request, through which leakscope itself holds the object."""

    __slots__ = ("dot", "max_depth", "obj", "too_many")

    def __init__(self, obj: object, max_depth: int, too_many: int) -> None:
        self.obj, self.max_depth, self.too_many, self.dot = obj, max_depth, too_many, ""

    def draw(self, heap: Liveness) -> None:
        """Draw during the pause of the snapshot."""
        referrers, written = _Referrers(heap), StringIO()
        starts = [self.obj, *referrers.memory_of(self.obj)]
        _objgraph(referrers).show_backrefs(starts, max_depth=self.max_depth, too_many=self.too_many, output=written)
        self.dot = written.getvalue()


class _StorageProxy:
    """Stands for a storage, which is not a Python object."""

    def __init__(self, index: int, size: int) -> None:
        self.index, self.label = index, f"{_MEMORY}, {size} bytes"


class _Referrers:
    """Referrers, referents and names in one snapshot."""

    def __init__(self, heap: Liveness) -> None:
        self._heap, self._objects = heap, heap.native.sweep.objects
        self._names: dict[tuple[int, int], tuple[ReferenceKind, str]] = {}
        self._memory: dict[int, _StorageProxy] = {}

    def memory_of(self, obj: object) -> list[_StorageProxy]:
        """The storage of a tensor."""
        native = self._heap.native
        index, first = native.find(id(obj)), self._heap.native.references.objects
        for place, storage in enumerate(native.storages):
            if index in storage.holders:
                memory = self._memory[place] = _StorageProxy(first + place, storage.bytes)
                return [memory]
        return []

    def get_referrers(self, target: object) -> list[Any]:
        """As `gc.get_referrers` of one object, including what gc does not see."""
        find = self._heap.native.find
        index = target.index if type(target) is _StorageProxy else find(id(target))
        if index < 0:
            # a snapshot has no number for untracked objects such as `object()`; their referrers are older than it
            return [holder for holder in gc.get_referrers(target) if find(id(holder)) >= 0 and not _is_ours(holder)]
        if index in self._heap.native.running:
            return []
        into = self._heap.native.references.into(np.asarray([index]))
        extra = self._heap.native.extra
        found: dict[int, Any] = {}
        for holder, known in zip(into.holder.tolist(), into.extra.tolist(), strict=True):
            source = self._objects[holder]
            if _is_ours(source) or (type(source) is torch.UntypedStorage and not self._has_referrers(holder)):
                continue
            found[holder] = source
            if known >= 0:
                self._names[id(source), id(target)] = extra.kind[known], extra.name[known]
            elif type(target) is _StorageProxy:
                self._names[id(source), id(target)] = ReferenceKind.MEMORY, "storage"
        return list(found.values())

    def _has_referrers(self, index: int) -> bool:
        """Whether anything refers to it: a storage's Python object, once created, lives as long as the storage."""
        return len(self._heap.native.references.into(np.asarray([index])).holder) > 0

    def edge(self, source: object, target: object, shortnames: bool = True) -> str:  # noqa: ARG002 - as objgraph calls it
        """The label of an arrow."""
        kind, name = self._names.get((id(source), id(target))) or _named(source, target)
        colour = f',color="{_COLOUR}",fontcolor="{_COLOUR}"' if kind in _OF_CPP else ""
        return f' [label="{_quoted(name[:_MAX_LABEL])}"{colour}]'

    def label(self, obj: object) -> str:
        """The label of an object."""
        if type(obj) is _StorageProxy:
            return obj.label
        index = self._heap.native.find(id(obj))
        modules = self._heap.pruned.modules
        return (namespace(modules[index]) if index in modules else describe(obj, self._heap.native.types)).label

    def where(self, obj: object) -> str:
        """The line of an object, "" without one."""
        return "" if type(obj) is _StorageProxy else describe(obj, self._heap.native.types).where


def _named(source: object, target: object) -> tuple[ReferenceKind | str, str]:
    """The name by which a Python object refers to another; "" if no reader knows it."""
    if type(target) is dict and instance_dict(source, type(source)) is target:
        return ReferenceKind.ATTRIBUTE, ".__dict__"
    named = named_referents(source, type(source), has_folded_dict=False)
    return next(((kind, name) for kind, name, held in named if held is target), ("", ""))


def _is_ours(obj: object) -> bool:
    if type(obj) is FrameType:
        return is_of_leakscope(obj.f_globals.get("__name__"))
    return is_leakscopes(type(obj))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _objgraph(referrers: _Referrers) -> Any:
    """A private copy of objgraph that reads a snapshot, not the process.

    objgraph collects before it draws, reads `f_locals` of frames, which then keep their locals alive, and calls `repr`
    and `__class__` of objects (objgraph.py, `_show_graph`, `_edge_label` and `_obj_label`); these names are rebound in
    the copy.
    """
    spec = importlib.util.find_spec("objgraph")
    assert spec is not None and spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    copy.gc = SimpleNamespace(collect=int, get_referrers=referrers.get_referrers)
    copy.inspect = SimpleNamespace(ismodule=_is_module)
    copy.is_proper_module = _is_module
    copy.getattr, copy.hasattr = _class_of, _has
    copy._edge_label = referrers.edge
    copy._short_typename, copy._safe_repr = referrers.label, referrers.where
    return copy


def _is_module(obj: object) -> bool:
    return type(obj) is ModuleType


def _class_of(obj: object, name: str, default: object = None) -> object:
    return type(obj) if name == "__class__" else default


def _has(kind: type, name: str) -> bool:
    return any(name in type_dict(base) for base in mro(kind))
