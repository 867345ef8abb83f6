"""Where do the steps begin in a file that marks none? Where a sequence of allocations begins again and again.

A training step allocates the same sizes from the same lines as the step before. What is told from it is told as
inferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from leakscope.allocator.replaying import Replay
from leakscope.allocator.sites import Site, StackPart, part_of
from leakscope.allocator.snapshot import Ints, Stack

_MIN_TIMES = 4
"""Times that a sequence must have begun: three whole ones and the one that goes on, chosen."""
_ALIKE = 0.7
"""Share of its allocations that a repetition must have in common with the one before it, chosen."""
_UNEVEN = 1.5
"""How much longer (or, its inverse, shorter) than the mean a repetition may be, in allocations; chosen: a step that
validates or saves as well is longer."""
_COVERED = 0.5
"""Share of the trace that the repetitions must make up, chosen."""
_MOST_COMPARED = 16
"""Repetitions compared with the one before, the last ones, chosen."""
_MOST_ANCHORS = 256
"""Allocations tried as the beginning of a repetition, chosen."""


@dataclass(frozen=True, eq=False)
class Repetition:
    """A sequence of allocations that begins again and again up to the end of the trace."""

    begins: Ints
    """The event at which each begins."""
    stack: int
    """Number of the stack of the allocation that is taken as its beginning."""
    trains: bool
    """Whether the last whole one has a forward and a backward in it: a sequence without both may be the layers of one
    pass, or the tokens of a generation, which grow by design."""


def repetition(replay: Replay, stacks: Sequence[Stack], sites: Sequence[Site]) -> Repetition | None:
    """The longest regular sequence of a trace; None where nothing repeats itself.

    Stacks and sizes are compared, and where sizes differ from step to step the stacks alone; then, where a step that is
    watched or that compiles has other stacks, the lines (`sites`, one for each stack). Time and memory are those of
    sorting the allocations.
    """
    made = len(replay.born)
    if made < 2 * _MIN_TIMES:
        return None
    by_stack = np.unique(replay.stacks, return_inverse=True)[1]
    numbers = {site: number for number, site in enumerate(dict.fromkeys(sites))}
    by_site = np.array([numbers[site] for site in sites], np.int64)[replay.stacks]
    for kinds in (_with_size(by_stack, replay), by_stack, _with_size(by_site, replay), by_site):
        at = _beginnings(kinds, replay)
        if at is not None and _alike(kinds, at):
            whole = set(replay.stacks[at[-2] : at[-1]].tolist())
            parts = {part_of(stacks[number], number) for number in whole}
            if StackPart.FORWARD not in parts:  # the layers of one backward, or the parameters of one optimizer
                return None
            return Repetition(replay.born[at], int(replay.stacks[at[0]]), StackPart.BACKWARD in parts)
    return None


def _with_size(kinds: Ints, replay: Replay) -> Ints:
    by_size = np.unique(replay.sizes, return_inverse=True)[1]
    both = kinds.astype(np.int64) * (int(by_size.max()) + 1) + by_size
    numbered: Ints = np.unique(both, return_inverse=True)[1]
    return numbered


def _beginnings(kinds: Ints, replay: Replay) -> npt.NDArray[np.intp] | None:
    """Which allocations begin a repetition: those of the kind before which least was alive, among the many kinds that
    occur equally often and evenly.
    """
    order = np.argsort(kinds, kind="stable")
    first = np.flatnonzero(np.diff(kinds[order], prepend=-1))
    count = np.diff(np.append(first, len(kinds)))
    often = count >= _MIN_TIMES
    first, count = first[often], count[often]
    if not len(first):
        return None
    gaps = np.diff(order, append=len(kinds))
    # of the first gap nothing is asked: the first step makes the optimizer's state and gradients
    spans = np.column_stack([first + 1, first + count - 1]).ravel()
    longest, shortest = np.maximum.reduceat(gaps, spans)[::2], np.minimum.reduceat(gaps, spans)[::2]
    begin, end = order[first + 1], order[first + count - 1]
    mean = (end - begin) / (count - 2)
    even = (longest <= _UNEVEN * mean) & (shortest * _UNEVEN >= mean) & (mean > 1)
    lasting = (len(kinds) - end <= _UNEVEN * mean) & (count * mean >= _COVERED * len(kinds))
    chosen = np.flatnonzero(even & lasting)
    if not len(chosen):
        return None
    times = np.bincount(count[chosen]).argmax()  # of equally many, the fewest: one a step rather than two
    best: tuple[float, npt.NDArray[np.intp]] | None = None
    for at in chosen[count[chosen] == times][:_MOST_ANCHORS].tolist():
        places = order[first[at] : first[at] + count[at]]
        low = float(replay.curve[np.maximum(replay.born[places] - 1, 0)].mean())
        if best is None or low < best[0]:
            best = (low, places)
    return None if best is None else best[1]


def _alike(kinds: Ints, at: npt.NDArray[np.intp]) -> bool:
    """Whether each repetition allocates what the one before it did; of the first two nothing is asked."""
    counts = []
    for begin, end in list(pairwise(at.tolist()))[1:][-_MOST_COMPARED:]:
        counts.append(
            dict(zip(*(part.tolist() for part in np.unique(kinds[begin:end], return_counts=True)), strict=True))
        )
    for before, after in pairwise(counts):
        common = sum(min(times, after.get(kind, 0)) for kind, times in before.items())
        if common < _ALIKE * max(sum(before.values()), sum(after.values())):
            return False
    return len(counts) > 1
