"""Which operations go together? The tensors of one microbatch, however their schedule, shapes and tags are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import gcd
from statistics import median

from leakscope.record.rows.comm import CommOperation

_APART = 2.0
"""How many times as long as between the tensors of one turn it is between two turns, at least; chosen."""
_REGULAR = 2
"""Turns, chosen, from which on a regular rhythm is one."""

Kind = tuple[Hashable, ...]
Run = Sequence[CommOperation]
"""Operations of one step and one way, in the order in which they were issued."""


@dataclass(frozen=True)
class Turn:
    """Where an operation stands in its step.

    A turn is the k-th time in the step that tensors go one way (group, direction, peer). In a pipeline with one stage a
    rank that is the microbatch; where a rank has several, the record does not say which of them it was.
    """

    turn: int
    """From 1."""
    tensor: int
    """Which one of the turn's, from 1."""
    tensors: int
    """How many go together in this turn."""


def turns_of(operations: Sequence[CommOperation]) -> dict[int, Turn]:
    """For each operation, by its id, its turn."""
    steps: dict[int, list[CommOperation]] = defaultdict(list)
    for operation in operations:
        steps[operation.step].append(operation)
    return {id_: turn for step in steps.values() for id_, turn in _of_step(sorted(step, key=_order)).items()}


def _order(operation: CommOperation) -> tuple[float, int]:
    return operation.issued, operation.id


def _way(operation: CommOperation) -> Kind:
    return operation.group, operation.direction, operation.peer


def _of_step(step: Run) -> dict[int, Turn]:
    ways: dict[Hashable, list[CommOperation]] = defaultdict(list)
    for operation in step:
        ways[_way(operation)].append(operation)
    waits = sorted(operation.waited for operation in step if operation.waited is not None)
    found: dict[int, Turn] = {}
    for way, mine in ways.items():
        others = [operation.issued for operation in step if _way(operation) != way]
        for number, turn in enumerate(_of_way(mine, others, waits), 1):
            for place, operation in enumerate(turn, 1):
                found[operation.id] = Turn(number, place, len(turn))
    return found


def _other_things_came(a: CommOperation, b: CommOperation, others: Sequence[float], waits: Sequence[float]) -> bool:
    """Whether between two operations another was issued that goes another way, and one was waited for."""

    def between(moments: Sequence[float]) -> bool:
        return bisect_right(moments, b.issued) > bisect_left(moments, a.issued)

    return between(others) and between(waits)


def _cut(run: Run, apart: Callable[[CommOperation, CommOperation], bool]) -> list[list[CommOperation]]:
    """The run, parted between neighbours that are apart."""
    parts = [list(run[:1])]
    for a, b in pairwise(run):
        if apart(a, b):
            parts.append([])
        parts[-1].append(b)
    return parts


def _of_way(mine: Run, others: Sequence[float], waits: Sequence[float]) -> list[list[CommOperation]]:
    """The turns of all that goes one way in a step; when `others` were issued and anything was waited for is known."""

    def others_came(a: CommOperation, b: CommOperation) -> bool:
        return _other_things_came(a, b, others, waits)

    def waited(a: CommOperation, b: CommOperation) -> bool:
        return others_came(a, b) or (a.waited is not None and a.waited <= b.issued)

    size = _by_parts(mine, _cut(mine, waited)) or _by_parts(mine, _cut(mine, others_came))
    return [turn for run in _cut(mine, others_came) for turn in _together(run, size)]


def _together(run: Run, usual: int | None) -> list[list[CommOperation]]:
    """The turns of a run in which nothing else came between; `usual` is how many alike ones go together."""
    count = len(run)
    usual = usual if usual and count % usual == 0 else None
    rhythms = (_period([kind(operation) for operation in run]) for kind in _KINDS)
    size = next((size for size in rhythms if 1 < size < count), None)
    if size is None:
        shapes = {_shape(operation) for operation in run}
        size = _by_tag(run) or usual or (count if len(shapes) == count else _by_rhythm(run))
    return [list(run[at : at + size]) for at in range(0, count, size)]


def _shape(operation: CommOperation) -> Kind:
    return operation.shape, operation.dtype


_KINDS: tuple[Callable[[CommOperation], Kind], ...] = (
    lambda operation: (operation.tag, operation.issued_at, operation.called_from, *_shape(operation)),
    lambda operation: (operation.issued_at, operation.called_from, *_shape(operation)),
    lambda operation: (operation.issued_at, *_shape(operation)),
    _shape,
)
"""What may tell the tensors of a turn apart; a tag may tell turns apart instead, and so may the line that asked."""


def _period(kinds: Sequence[Hashable]) -> int:
    """After how many the sequence comes again, to its end; its length where it does not."""
    return next(
        size for size in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i - size] for i in range(size, len(kinds)))
    )


def _by_tag(run: Run) -> int | None:
    """Tensors of a turn where each turn has a tag of its own."""
    sizes = [len(list(same)) for _, same in groupby(run, key=lambda operation: operation.tag)]
    tags = {operation.tag for operation in run}
    return sizes[0] if len(sizes) == len(tags) >= _REGULAR and len(set(sizes)) == 1 and sizes[0] > 1 else None


def _by_parts(mine: Run, parts: Sequence[Run]) -> int | None:
    """Tensors of a turn where something came between turns, if not between all of them."""
    size = gcd(*map(len, parts))
    return size if len(parts) >= _REGULAR and size > 1 and _keeps_time(mine, size) else None


def _by_rhythm(run: Run) -> int:
    """Tensors of a turn by when they were issued: those of one come at once; 1 where that tells nothing."""
    sizes = (size for size in range(2, len(run) // _REGULAR + 1) if len(run) % size == 0)
    return next((size for size in sizes if _keeps_time(run, size, strictly=True)), 1)


def _keeps_time(run: Run, size: int, strictly: bool = False) -> bool:
    """Whether it is longer between turns of this size than within them; `strictly`: between any two."""
    within: list[float] = []
    between: list[float] = []
    for place, (a, b) in enumerate(pairwise(run), 1):
        (within if place % size else between).append(b.issued - a.issued)
    longest, shortest = (max(within), min(between)) if strictly else (median(within), median(between))
    return bool(_APART * longest < shortest)
