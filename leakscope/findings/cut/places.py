"""Which references could be cut? Single ones on a path, and one and the same in all the places where it stands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import HOOKS, holds_itself
from leakscope.findings.naming.trace import group_name
from leakscope.graph.model import ObjectKind, ReferenceKind
from leakscope.graph.paths import ShortestPaths, paths_from, paths_from_roots

_MAX_INSTANCES = 4000
"""Cycles or paths alike that are cut in the same place, the last ones made: more change no share that is told."""
_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER)


def on_path(candidate: Candidate) -> list[tuple[int, ...]]:
    """References from the root to the first tensor, or to its hooks; one more where the tensor is the root's own.

    Where calls of one function pile up, the same reference in each of them.
    """
    hooks = (
        [k + 1 for k, r in enumerate(candidate.references) if r.kind == ReferenceKind.HOOK]
        if candidate.group.key[-1] == HOOKS
        else []
    )
    path = candidate.group.path[: max(candidate.tensor_at, 1, *hooks)]
    if candidate.group.roots <= 1 or not path:
        return [(reference,) for reference in path]
    return _same_on_paths(candidate, paths_from_roots(candidate.graph), path)


def of_each_owner(candidate: Candidate, position: int) -> tuple[int, ...]:
    """The attribute that holds a container which gains, in every object like its owner; the items of a list or dict
    that has several such containers and gains none.

    Where a cut at `position` of the path takes all those owners away: `model[i].seen`, not `model`.
    """
    place, graph = candidate.gaining - 1, candidate.graph
    if not position < place < candidate.tensor_at or candidate.group.roots > 1:
        return ()
    kind = graph.reference(candidate.group.path[place]).kind
    if kind != ReferenceKind.ATTRIBUTE and (kind != ReferenceKind.ITEM or candidate.above_gains):
        return ()
    upto, paths = candidate.group.path[: place + 1], paths_from_roots(graph)
    names = [group_name(graph.reference(r).name) for r in upto]
    each = {upto[-1]: None}
    for storage in candidate.group.storages[-_MAX_INSTANCES:]:
        path = paths.path_to(graph, storage)[: place + 1]
        if path and path[-1] not in each and [group_name(graph.reference(r).name) for r in path] == names:
            each[path[-1]] = None
    return tuple(each)


def all_items(candidate: Candidate) -> tuple[int, ...]:
    """All items of the container that gains, that on the path first.

    Emptying it frees what leads back to the container itself, as the frames of the exceptions in it do.
    """
    place, graph = candidate.gaining, candidate.graph
    if (
        place < 0
        or place >= candidate.tensor_at
        or candidate.group.roots > 1
        or candidate.references[place].kind != ReferenceKind.ITEM
    ):
        return ()
    item = candidate.references[place]
    name = group_name(item.name)
    alike = [
        r for r in graph.out_of(item.holder).tolist() if r != item.index and group_name(graph.reference(r).name) == name
    ]
    return (item.index, *alike[-_MAX_INSTANCES:])


def each_of_many(candidate: Candidate) -> tuple[int, ...]:
    """Every attribute by which a holder has what it gains, that on the path first: `net.client0`, `net.client1`, ...

    Where the holder stands in many places, or others gain the same names, those of each.
    """
    many, graph = candidate.group.many, candidate.graph
    if many is None:
        return ()
    paths = paths_from_roots(graph)
    each = {candidate.group.path[many.place]: None}
    for storage in candidate.group.storages[-_MAX_INSTANCES:]:
        path = paths.path_to(graph, storage)
        gained = next((r for r in path if graph.reference(r).name in many.names), None)
        if gained is not None:
            each[gained] = None
    return tuple(each)


def around_cycle(candidate: Candidate) -> list[tuple[int, ...]]:
    """For each place on the cycle, that reference in every instance of it; none where a class holds itself."""
    first = candidate.group.cycles[0] if candidate.group.cycles else ()
    if not first or holds_itself(candidate.graph, int(candidate.graph.holder[first[0]])):
        return []
    same = [c for c in candidate.group.cycles if len(c) == len(first)][:_MAX_INSTANCES]
    return [tuple(cycle[k] for cycle in same) for k in range(len(first))]


def below_cycle(candidate: Candidate) -> list[tuple[int, ...]]:
    """For each place on the path from the cycle to the first tensor, that reference in every instance."""
    around = np.asarray([r for cycle in candidate.group.cycles[:_MAX_INSTANCES] for r in cycle], dtype=np.int64)
    if len(around) == 0:
        return []
    paths = paths_from(candidate.graph, np.unique(candidate.graph.holder[around]))
    down = paths.path_to(candidate.graph, int(candidate.graph.held[candidate.group.path[-1]]))
    tensor = next(
        (k for k, r in enumerate(down) if candidate.graph.object(int(candidate.graph.held[r])).kind in _TENSORS),
        len(down) - 1,
    )
    return _same_on_paths(candidate, paths, down[: tensor + 1])


def _same_on_paths(candidate: Candidate, paths: ShortestPaths, first: Sequence[int]) -> list[tuple[int, ...]]:
    """For each reference of one path, that reference on one path of the same names from every other start."""
    graph = candidate.graph
    names = [group_name(graph.reference(r).name) for r in first]
    same = {int(graph.holder[first[0]]): first}
    for storage in candidate.group.storages[-_MAX_INSTANCES:]:
        path = paths.path_to(graph, storage)[: len(first)]
        if [group_name(graph.reference(r).name) for r in path] == names:
            same.setdefault(int(graph.holder[path[0]]), path)
    return [tuple(path[k] for path in same.values()) for k in range(len(first))]
