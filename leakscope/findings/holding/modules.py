"""Which memory is a model's or an optimizer's own? Each is told as one holder, not as hundreds of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from leakscope.findings.grouping.groups import Group
from leakscope.findings.holding.letting_go import Held
from leakscope.findings.holding.model import Part
from leakscope.graph.model import HeapGraph, Ints, ObjectKind, ReferenceKind
from leakscope.graph.paths import paths_from_roots

_OWNERS = (ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER)
_OF_MODEL = (ObjectKind.NN_MODULE, ObjectKind.PARAMETER, ObjectKind.STORAGE)
_OF_OPTIMIZER = (ObjectKind.CONTAINER, ObjectKind.PARAMETER, ObjectKind.TENSOR, ObjectKind.STORAGE)


def by_module(graph: HeapGraph, number: Ints, groups: Iterable[Group]) -> Iterator[Held]:
    """The groups; the parameters and buffers of one model as one, and so its gradients and an optimizer's state.

    `number` is that of each reference of the graph in the whole one.
    """
    parts: dict[tuple[int, Part], list[tuple[int, int, list[int]]]] = {}
    paths = paths_from_roots(graph)
    for group in groups:
        others = []
        for storage in group.storages if _owner_at(graph, group.start, group.path) else ():
            path = paths.path_to(graph, storage)
            place, part = _part(graph, paths.start_of(graph, storage), path)
            if part:
                parts.setdefault((path[place - 1], part), []).append((storage, place, path))
            else:
                others.append(storage)
        left = others if _owner_at(graph, group.start, group.path) else group.storages
        if left:
            yield Held(graph, number, _of(graph, group, left))
    for (_, part), alike in parts.items():
        storage, place, path = max(alike, key=lambda one: (int(graph.bytes[one[0]]), -one[0]))
        group = Group((), paths.start_of(graph, storage), tuple(path), (), 0, 0, roots=1)
        yield Held(graph, number, _of(graph, replace(group, key=(part,)), [one[0] for one in alike]), part, place)


def _of(graph: HeapGraph, group: Group, storages: Sequence[int]) -> Group:
    """The group with these storages alone."""
    if len(storages) == len(group.storages):
        return group
    path = group.path
    if group.storages and int(graph.held[path[-1]]) not in storages:
        path = tuple(paths_from_roots(graph).path_to(graph, max(storages, key=lambda s: (int(graph.bytes[s]), s))))
    return replace(group, storages=tuple(storages), bytes=int(graph.bytes[list(storages)].sum()), path=path)


def _owner_at(graph: HeapGraph, start: int, path: Sequence[int]) -> int:
    """Position on the path of the outermost module or optimizer, 0 without one."""
    objects = (graph.object(index) for index in (start, *(int(graph.held[r]) for r in path)))
    return next((k for k, obj in enumerate(objects) if obj.kind in _OWNERS), 0)


def _part(graph: HeapGraph, start: int, path: Sequence[int]) -> tuple[int, Part]:
    """(Position of the outermost module or optimizer, which of its memory it is that the path leads to)."""
    place = _owner_at(graph, start, path)
    if not place:
        return 0, Part.NONE
    below = [graph.reference(r) for r in path[place:]]
    of_optimizer = graph.object(below[0].holder).kind == ObjectKind.OPTIMIZER
    own = _OF_OPTIMIZER if of_optimizer else _OF_MODEL
    part = Part.STATE if of_optimizer and below[0].name == ".state" else Part.PARAMETERS
    for reference in below:
        gradient = reference.name == ".grad" and graph.object(reference.holder).kind == ObjectKind.PARAMETER
        if gradient and part == Part.PARAMETERS:
            part = Part.GRADIENTS
        elif graph.object(reference.held).kind not in own and reference.kind != ReferenceKind.BUFFER:
            return 0, Part.NONE
    return place, part
