"""Which references must be cut together, where more than one of them holds the same memory?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import HOOKS
from leakscope.findings.naming.trace import generic
from leakscope.graph.model import REFERENCE_COLUMNS, HeapGraph, Ints
from leakscope.graph.paths import ShortestPaths, paths_from_roots

MAX_REFERENCES = 4
"""References that a person can be asked to cut together."""
FREED_THRESHOLD = 0.9
"""Share of the memory from which a cut is said to free it: the last tensor made may still be in use."""
_MAX_COMPARED = 200
"""Storages whose paths are compared."""
HELD_ELSEWHERE_SHARE = 0.5
"""A cut that frees less than this share of the memory: something else holds the rest."""

Freed = Callable[[Sequence[int]], int]


def minimal_cut(
    candidate: Candidate, freed: Freed, beside: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[Candidate, ...]]:
    """(References, the candidate on each one's path), as few as do.

    `freed` gives the bytes of the group that cutting references would free, `beside` are cut in any case. Empty where
    one cut is enough, where nothing else is found to hold the memory, or where cutting a few does not free it: each
    step's tensor may have a holder of its own.
    """
    group = candidate.group
    if group.freed != 0 or group.roots > 1 or group.key[-1] == HOOKS or not _names_more(candidate, freed):
        return (), ()
    cuts: list[int] = []
    held_by: list[Candidate] = []
    compared = group.storages[:: -(-len(group.storages) // _MAX_COMPARED)]
    while len(cuts) < MAX_REFERENCES:
        rest, number = without(candidate.graph, [*beside, *cuts])
        paths = paths_from_roots(rest)
        below = paths.storages_below(rest, compared)
        path = tuple(int(number[reference]) for reference in paths.path_to(rest, _where_most_are(rest, paths, below)))
        if not path:
            return (), ()
        holder = replace(
            candidate, group=replace(group, start=int(candidate.graph.holder[path[0]]), path=path, many=None)
        )
        shared = _last_shared(holder, below, len(compared))
        if shared is None:
            return (), ()
        cuts.append(shared)
        held_by.append(holder)
        if freed(cuts) >= FREED_THRESHOLD * group.bytes:
            needed = those_needed(cuts, lambda some: freed(some) >= FREED_THRESHOLD * group.bytes)
            if len(cuts) + bool(beside) == 1:
                return (), ()
            return tuple(cuts[k] for k in needed), tuple(held_by[k] for k in needed)
    return (), ()


def those_needed(cuts: Sequence[int], is_enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """Positions of those cuts without which the others are not enough.

    One found late may make an earlier one needless.
    """
    places = list(range(len(cuts)))
    for place in range(len(cuts)):
        others = [k for k in places if k != place]
        if others and is_enough([cuts[k] for k in others]):
            places = others
    return places


def _names_more(candidate: Candidate, freed: Freed) -> bool:
    """Whether a name stands on the path below the last reference whose cut frees the memory: `.rows`, not `[i]`."""
    upto = candidate.group.path[: candidate.tensor_at]
    named = [reference for reference in upto if generic(candidate.graph.reference(reference).name) != "[i]"]
    return bool(named) and freed([named[-1]]) < HELD_ELSEWHERE_SHARE * candidate.group.bytes


def _where_most_are(graph: HeapGraph, paths: ShortestPaths, below: Mapping[int, int]) -> int:
    """The storage at the end of the way that most of them hang on, at each turn of it; of as many the latest but one.

    Any one of them may be held by what has the last alone: `.val` beside `.sum` and `.avg`.
    """
    next_to: dict[int, list[int]] = {}
    for index in below:
        if (last := int(paths.last[index])) >= 0:
            next_to.setdefault(int(graph.holder[last]), []).append(index)
    starts = [index for index in below if paths.last[index] < 0]
    here = max(starts, key=lambda index: (below[index], -index))
    while here in next_to:
        turns = sorted(next_to[here], key=lambda index: (-below[index], -index))
        several = len(turns) > 1 and below[turns[0]] == below[turns[1]]  # the last one made may still be in use
        here = turns[1] if several else turns[0]
    return here


def _last_shared(candidate: Candidate, below: Mapping[int, int], count: int) -> int | None:
    """The last reference before the first tensor that most of the storages hang on; None where they share none."""
    upto = candidate.group.path[: candidate.tensor_at]
    shared = [reference for reference in upto if 2 * below[int(candidate.graph.held[reference])] > count]
    return shared[-1] if shared else None


def without(graph: HeapGraph, references: Sequence[int]) -> tuple[HeapGraph, Ints]:
    """The graph without these references, and what number each of its references had."""
    if not references:
        return graph, np.arange(len(graph.holder))
    kept = np.delete(np.arange(len(graph.holder)), references)
    return replace(graph, **{name: getattr(graph, name)[kept] for name in REFERENCE_COLUMNS}), kept
