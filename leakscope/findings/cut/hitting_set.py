"""Which few things are in each of several sets?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

_MAX_TRIED = 20_000
"""Choices that are compared before the best so far is taken; chosen, some tens of milliseconds."""


def smallest_hitting_set(sets: Sequence[Set[int]], cost: Mapping[int, Any], limit: int) -> tuple[int, ...] | None:
    """As few as do, `limit` at most, that are together in every one of the sets; of as many those whose highest
    cost is least. None where there are none.

    Exact: of those that are in the same sets the one of least cost stands for all. `cost` gives each a key of its own.
    """
    bits = _best_of_each_kind(sets, cost)
    everything = (1 << len(sets)) - 1
    best: list[tuple[Any, tuple[int, ...]]] = []
    tried = 0

    def choose(chosen: tuple[int, ...], hit: int, size: int) -> None:
        nonlocal tried
        tried += 1
        if hit == everything:
            best.append((sorted((cost[c] for c in chosen), reverse=True), tuple(sorted(chosen, key=cost.__getitem__))))
            return
        if len(chosen) == size or tried > _MAX_TRIED:
            return
        missed = next(k for k in range(len(sets)) if not hit >> k & 1)
        for element in sorted((e for e, b in bits.items() if b >> missed & 1), key=cost.__getitem__):
            choose((*chosen, element), hit | bits[element], size)

    for size in range(1, limit + 1):
        choose((), 0, size)
        if best:
            return min(best)[1]
    return None


def _best_of_each_kind(sets: Sequence[Set[int]], cost: Mapping[int, Any]) -> dict[int, int]:
    """Elements and the sets each is in, as bits: of those in the same sets, or in fewer, the one of least cost."""
    elements = {element for among in sets for element in among}
    bits = {e: sum(1 << k for k, among in enumerate(sets) if e in among) for e in elements}
    kept: dict[int, int] = {}
    for element in sorted(bits, key=cost.__getitem__):
        mine = bits[element]
        if not any(mine & other == mine for other in kept.values()):
            kept[element] = mine
    return kept
