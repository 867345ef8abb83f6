"""Which references must be cut together, where more than one of them holds the same memory?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import HOOKS
from leakscope.findings.naming.trace import generic
from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.paths import ways_from_roots

_MOST = 4
"""References that a person can be asked to cut together."""
_MOST_ASKED = 200
"""Storages whose ways are compared."""
_HELD_ELSEWHERE = 0.5
"""A cut that frees less than this share of the memory: something else holds the rest."""
_ENOUGH = 0.9

Freed = Callable[[Sequence[int]], int]


def cut_together(found: Candidate, freed: Freed) -> tuple[tuple[int, ...], tuple[Candidate, ...]]:
    """(References, the candidate on each one's way), as few as do.

    `freed` gives the bytes of the group that cutting references would free. Empty where one cut is enough, where nothing
    else is found to hold the memory, or where cutting a few does not free it: each step's tensor may have a holder of its own.
    """
    group = found.group
    if group.freed != 0 or group.roots > 1 or group.key[-1] == HOOKS or not _names_more(found, freed):
        return (), ()
    cuts: list[int] = []
    held_by: list[Candidate] = []
    typical = group.storages[len(group.storages) // 2]  # the last one made may still be in use
    while len(cuts) < _MOST:
        rest, kept = _without(found.graph, cuts)
        ways = ways_from_roots(rest)
        way = [int(kept[reference]) for reference in ways.to(rest, typical)]
        if not way:
            return (), ()
        holder = replace(found, group=replace(group, start=int(found.graph.holder[way[0]]), way=tuple(way)))
        grip = _grip(holder, Counter(int(kept[r]) for storage in _some(group.storages) for r in ways.to(rest, storage)))
        if grip is None:
            return (), ()
        cuts.append(grip)
        held_by.append(holder)
        if freed(cuts) >= _ENOUGH * group.bytes:
            needed = _needed(cuts, lambda some: freed(some) >= _ENOUGH * group.bytes)
            return (tuple(cuts[k] for k in needed), tuple(held_by[k] for k in needed)) if len(cuts) > 1 else ((), ())
    return (), ()


def _needed(cuts: Sequence[int], is_enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """Positions of those cuts without which the others are not enough: one found late may make an earlier one needless."""
    places = list(range(len(cuts)))
    for place in range(len(cuts)):
        others = [k for k in places if k != place]
        if others and is_enough([cuts[k] for k in others]):
            places = others
    return places


def _names_more(found: Candidate, freed: Freed) -> bool:
    """Whether a name stands on the way below the last reference whose cut frees the memory: `.rows`, not `[i]`."""
    upto = found.group.way[: found.tensor_at]
    named = [k for k, r in enumerate(upto) if generic(found.graph.reference(r).name) != "[i]"]
    return bool(named) and freed([upto[named[-1]]]) < _HELD_ELSEWHERE * found.group.bytes


def _grip(found: Candidate, ways: Counter[int]) -> int | None:
    """The last reference before the first tensor that most of the group's ways share; None where they share none."""
    shared = [r for r in found.group.way[: found.tensor_at] if 2 * ways[r] > len(_some(found.group.storages))]
    return shared[-1] if shared else None


def _some(storages: Sequence[int]) -> Sequence[int]:
    """Not more than `_MOST_ASKED` of them, evenly."""
    return storages[:: -(-len(storages) // _MOST_ASKED)]


def _without(graph: HeapGraph, references: Sequence[int]) -> tuple[HeapGraph, Ints]:
    """The graph without these references, and what number each of its references had."""
    kept = np.delete(np.arange(len(graph.holder)), references)
    columns = {
        name: getattr(graph, name)[kept]
        for name in ("holder", "held", "reference_kind", "reference_name", "reference_where")
    }
    return replace(graph, **columns), kept
