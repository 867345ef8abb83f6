"""Where did the growth of a rank go? Line by line, to the last byte that was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class LineKind(StrEnum):
    """What growth is, as far as it is known."""

    LEAKS = "leaks"
    LIBRARY = "library"
    """Closed or held by a library, leak or not."""
    BOUND = "filling_bound"
    GARBAGE = "waiting_for_gc"
    """In cycles, and no leak by its growth."""
    SLOW = "too_little"
    """Of something that grows, by too little or at too few looks for a verdict."""
    RESTED = "came_to_rest"
    """Grew once, or comes and goes."""
    FOLLOWS = "follows_input"
    """Made anew in each step, and larger where its input was larger."""
    APART = "suppressed"
    """Of findings that are suppressed or were there before."""
    OBJECTS = "python_objects"
    """Numpy arrays, bytes and other objects that are no tensors."""
    GRAD_NODES = "grad_nodes"
    """C++ memory of autograd graphs, by their number of nodes."""
    BLOCKS = "native_blocks"
    """Of an accelerator's allocator: blocks that are no storage, and what blocks are larger than their storages."""
    UNATTRIBUTED = "unattributed"
    """What is left of the counted bytes, with its sign."""


class RestedKind(StrEnum):
    """What the memory is for that came to rest."""

    OPTIMIZER = "optimizer state"
    PARAMETER = "parameters and gradients"
    OTHER = "other tensors"


@dataclass(frozen=True)
class Line:
    """One line of a ledger."""

    kind: LineKind
    bytes: int
    """Growth, below zero where it shrank."""
    fingerprint: str = ""
    """Of the finding that it is of."""
    holder: str = ""
    """What keeps it, as the user would write it."""
    rested: RestedKind | None = None

    @property
    def name(self) -> tuple[str, ...]:
        """What it has in common with the same line of other intervals."""
        return self.kind, self.fingerprint, self.rested or ""


@dataclass(frozen=True)
class LedgerInterval:
    """Growth between two looks in a row of one rank, on one kind of device."""

    from_step: int
    to_step: int
    counted_bytes: int | None
    """Growth that the allocator counted, the sum of the lines; None where nothing counts."""
    lines: tuple[Line, ...]
    counted_on: str = "cpu"

    @property
    def grown(self) -> int:
        """Growth that was counted or, where nothing counts, that was seen."""
        return sum(line.bytes for line in self.lines) if self.counted_bytes is None else self.counted_bytes


@dataclass(frozen=True)
class Grown:
    """What the memory of one rank did, and where its growth went."""

    rank: int
    bytes: int
    """Growth, below zero where it shrank."""
    from_step: int
    to_step: int
    looks: int
    """Of which it was read; 0 for the counters at the end of each step, and at the end of the main code."""
    per_step: float
    """Bytes a step, as the counters at the steps tell it where they do."""
    until: int | None = None
    """The step from which on it did not rise any more; None where it rose to the last look, or not at all."""
    to_end: bool = False
    """It was counted to the end of the script's main code, too few steps having been seen."""
    is_counted: bool = True
    """False where nothing counts, and only storages and arrays are known."""
    lines: tuple[Line, ...] = ()
    among: int = 1
    """Ranks of which it is the one that grew most."""

    @property
    def steps(self) -> int:
        """Steps over which it grew, at least one."""
        return max(self.to_step - self.from_step, 1)


NO_GROWTH = 4096
"""Bytes a step, chosen, below which nothing is said to have grown: what any process moves by."""
Ledger = Sequence[LedgerInterval]


def totals(intervals: Ledger) -> tuple[Line, ...]:
    """The lines over all intervals, largest first; lines that did not move are left out."""
    return merged_lines(line for interval in intervals for line in interval.lines)


def merged_lines(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Lines of one name as one, largest first; those without a byte are left out."""
    sizes: Counter[tuple[str, ...]] = Counter()
    first: dict[tuple[str, ...], Line] = {}
    for line in lines:
        sizes[line.name] += line.bytes
        first.setdefault(line.name, line)
    found = (replace(first[name], bytes=size) for name, size in sizes.items() if size)
    return tuple(sorted(found, key=lambda line: (-line.bytes, line.name)))


def by_kind(lines: Iterable[Line]) -> dict[LineKind, int]:
    """Bytes of each kind of line, 0 where there are none."""
    sizes = dict.fromkeys(LineKind, 0)
    for line in lines:
        sizes[line.kind] += line.bytes
    return sizes


_REST = 0.05
"""Share of a growth below which what comes after it is none; chosen."""


def _until(same: Ledger, size: int) -> int | None:
    """The step of the look after which the growth stopped."""
    rises = [interval.grown > _REST * size for interval in same]
    if size <= 0 or rises[-1] or not any(rises):
        return None
    return max(interval.to_step for interval, rise in zip(same, rises, strict=True) if rise)


def grown_of(rank: int, intervals: Ledger) -> Grown | None:
    """The growth over all intervals on the last kind of device; None where there are none."""
    same = [interval for interval in intervals if interval.counted_on == intervals[-1].counted_on]
    if not same:
        return None
    size, begin, end = sum(interval.grown for interval in same), same[0].from_step, same[-1].to_step
    return Grown(
        rank=rank,
        bytes=size,
        from_step=begin,
        to_step=end,
        looks=len(same) + 1,
        per_step=size / max(end - begin, 1),
        until=_until(same, size),
        is_counted=all(interval.counted_bytes is not None for interval in same),
        lines=totals(same),
    )
