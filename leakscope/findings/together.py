"""Which references must be cut together, where more than one of them holds the same memory?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from leakscope.findings.candidate import Candidate
from leakscope.findings.groups import HOOKS
from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.paths import ways_from_roots

_MOST = 4
"""References that a person can be asked to cut together."""
_HELD_ELSEWHERE = 0.5
"""A cut next to the tensors that frees less than this share of them: something else holds the rest."""
_ENOUGH = 0.9

Freed = Callable[[Sequence[int]], int]


def cut_together(found: Candidate, freed: Freed) -> tuple[tuple[int, ...], tuple[Candidate, ...]]:
    """(References, the candidate on each one's way): the first is the one that the group's own way goes through.

    `freed` gives the bytes of the group that cutting references would free. Empty where one cut is enough, where nothing
    else is found to hold the memory, or where cutting a few does not free it: each step's tensor may have a holder of its own.
    """
    group = found.group
    if group.freed != 0 or group.roots > 1 or group.key[-1] == HOOKS or not group.way:
        return (), ()
    first = _grip(found)
    if first is None or freed([first]) >= _HELD_ELSEWHERE * group.bytes:
        return (), ()
    cuts, held_by = [first], [found]
    typical = group.storages[len(group.storages) // 2]  # the last one made may still be in use
    while len(cuts) < _MOST:
        rest, kept = _without(found.graph, cuts)
        way = [int(kept[reference]) for reference in ways_from_roots(rest).to(rest, typical)]
        other = replace(found, group=replace(group, start=int(found.graph.holder[way[0]]), way=tuple(way))) if way else None
        grip = None if other is None else _grip(other)
        if other is None or grip is None:
            return (), ()
        cuts.append(grip)
        held_by.append(other)
        if freed(cuts) >= _ENOUGH * group.bytes:
            return tuple(cuts), tuple(held_by)
    return (), ()


def _grip(found: Candidate) -> int | None:
    """The reference to the container whose items are the tensors; None where they are held by something else."""
    place = found.tensor_at - 1
    if place < 1 or found.objects[place].kind != "container":
        return None
    return found.group.way[place - 1]


def _without(graph: HeapGraph, references: Sequence[int]) -> tuple[HeapGraph, Ints]:
    """The graph without these references, and what number each of its references had."""
    kept = np.delete(np.arange(len(graph.holder)), references)
    columns = {name: getattr(graph, name)[kept] for name in ("holder", "held", "reference_kind", "reference_name", "reference_where")}
    return replace(graph, **columns), kept
