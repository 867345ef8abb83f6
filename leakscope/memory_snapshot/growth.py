"""Growth over the steps of a trace; steps are inferred where the file marks none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from leakscope.memory_snapshot.model import Annotation, Ints, Stack, Trace
from leakscope.memory_snapshot.replay import Replay
from leakscope.memory_snapshot.sites import Site, StackPart, part_of

_MIN_TIMES = 4
"""Minimum number of starts of a sequence: three complete ones and the current one. Heuristic."""
_MIN_COMMON_SHARE = 0.7
"""Minimum share of allocations that a repetition has in common with the previous one. Heuristic."""
_UNEVEN = 1.5
"""Maximum ratio (or, inverted, minimum) of a repetition's length to the mean, in allocations. Heuristic: a step that
also validates or saves is longer.
"""
_COVERED = 0.5
"""Minimum share of the trace that the repetitions cover. Heuristic."""
_MAX_COMPARED = 16
"""Last repetitions that are compared with their predecessor. Heuristic."""
_MAX_ANCHORS = 256
"""Allocations tried as the start of a repetition. Heuristic."""


@dataclass(frozen=True, eq=False)
class Repetition:
    """A sequence of allocations that repeats up to the end of the trace."""

    begins: Ints
    """The event at which each starts."""
    stack: int
    """Number of the stack of its first allocation."""
    trains: bool
    """Whether the last complete one contains a forward and a backward: a sequence without both may be the layers of one
    pass, or the tokens of a generation, which grow by design.
    """


def repetition(replay: Replay, stacks: Sequence[Stack], sites: Sequence[Site]) -> Repetition | None:
    """The longest regular sequence of a trace; None if nothing repeats.

    Compares stacks and sizes; stacks only if sizes differ between steps; and lines (`sites`, one per stack) if a
    watched or compiling step has other stacks. Time and memory are those of sorting the allocations.
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
    """The allocations that start a repetition: of the kind before which least was alive, among kinds that occur equally
    often and evenly.
    """
    order = np.argsort(kinds, kind="stable")
    first = np.flatnonzero(np.diff(kinds[order], prepend=-1))
    count = np.diff(np.append(first, len(kinds)))
    often = count >= _MIN_TIMES
    first, count = first[often], count[often]
    if not len(first):
        return None
    gaps = np.diff(order, append=len(kinds))
    # the first gap is unrestricted: the first step creates the optimizer's state and gradients
    spans = np.column_stack([first + 1, first + count - 1]).ravel()
    longest, shortest = np.maximum.reduceat(gaps, spans)[::2], np.minimum.reduceat(gaps, spans)[::2]
    begin, end = order[first + 1], order[first + count - 1]
    mean = (end - begin) / (count - 2)
    even = (longest <= _UNEVEN * mean) & (shortest * _UNEVEN >= mean) & (mean > 1)
    lasting = (len(kinds) - end <= _UNEVEN * mean) & (count * mean >= _COVERED * len(kinds))
    chosen = np.flatnonzero(even & lasting)
    if not len(chosen):
        return None
    times = np.bincount(count[chosen]).argmax()  # among equal counts, the fewest: one per step rather than two
    best: tuple[float, npt.NDArray[np.intp]] | None = None
    for at in chosen[count[chosen] == times][:_MAX_ANCHORS].tolist():
        places = order[first[at] : first[at] + count[at]]
        low = float(replay.curve[np.maximum(replay.born[places] - 1, 0)].mean())
        if best is None or low < best[0]:
            best = (low, places)
    return None if best is None else best[1]


def _alike(kinds: Ints, at: npt.NDArray[np.intp]) -> bool:
    """Whether each repetition allocates what the previous one did; the first two are not compared."""
    counts = []
    for begin, end in list(pairwise(at.tolist()))[1:][-_MAX_COMPARED:]:
        counts.append(
            dict(zip(*(part.tolist() for part in np.unique(kinds[begin:end], return_counts=True)), strict=True))
        )
    for before, after in pairwise(counts):
        common = sum(min(times, after.get(kind, 0)) for kind, times in before.items())
        if common < _MIN_COMMON_SHARE * max(sum(before.values()), sum(after.values())):
            return False
    return len(counts) > 1


MIN_RISES = 3
"""Minimum consecutive step ends with more bytes each, including the last, to report growth."""

MIN_INFERRED_RISES = 6
"""Minimum rises if the file marks no steps. Heuristic: what repeats may be less than a step."""

_MAX_STEPS = 512
"""Last steps examined. Heuristic: the levels of all sites at each are kept."""
_MARKERS = (
    r"Optimizer\.step#",
    r"ProfilerStep#",
    r".*\b(step|iteration|iter)\b",
    r"Optimizer\.zero_grad#",
    r".*DataLoader.*__next__",
)
"""Annotations that start a step, in order of preference: those that torch records, and names in common use."""


@dataclass(frozen=True)
class SiteGrowth:
    """A site whose live bytes rose with every step up to the end."""

    site: Site
    bytes_per_step: float
    steps: int
    """Consecutive steps at which it rose."""
    kept_bytes: int
    """Bytes allocated there that are alive at the end."""


@dataclass(frozen=True)
class StepGrowth:
    """What each step left behind."""

    marker: str
    """Name of the annotation that starts a step, or the site of the allocation that does; empty without steps."""
    steps: int
    """Complete steps (from one marker to the next)."""
    bytes_at_ends: tuple[int, ...]
    """Bytes alive at the start of each step."""
    growing: tuple[SiteGrowth, ...]
    """Largest first."""
    inferred: bool = False
    """Whether steps were inferred from a repeating sequence of allocations, without a mark."""
    trains: bool = True
    """False if the repeating sequence has no forward and backward: it may not be a step, and may grow by design."""

    @property
    def judged(self) -> bool:
        """Whether there were enough steps to detect growth."""
        return self.steps >= MIN_RISES and self.trains


NO_STEPS = StepGrowth("", 0, (), ())
"""The result for a device without events."""


def step_growth(
    replay: Replay, trace: Trace, annotations: Sequence[Annotation], sites: Sequence[Site], stacks: Sequence[Stack]
) -> StepGrowth:
    """Find sites whose live bytes rise at the end of every step.

    A step reaches from one start of the marker (`Optimizer.step#...` if there is one; joined to the events by time) to
    the next or, in a file without markers, from one start of a repeating sequence of allocations to the next. A full
    cache, optimizer state and gradients do not rise; a bounded container that is not full yet cannot be told from a
    leak here.
    """
    marked = _marked(replay, trace, annotations, sites)
    if marked.marker or not replay.events:
        return marked
    repeated = repetition(replay, stacks, sites)
    if repeated is None:
        return marked
    found = _over(replay, repeated.begins[-_MAX_STEPS:], sites[repeated.stack].where, sites, MIN_INFERRED_RISES)
    return replace(found, inferred=True, trains=repeated.trains)


def _marked(replay: Replay, trace: Trace, annotations: Sequence[Annotation], sites: Sequence[Site]) -> StepGrowth:
    own = [note for note in annotations if note.device == replay.device] or list(annotations)
    marker, starts = _marker(own)
    if not replay.events or int(trace.time_us.max()) < 0:
        return NO_STEPS
    # Times are monotone within a trace, so the first event at or after a marker begins the step.
    inside = [time for time in starts if int(trace.time_us[0]) <= time]
    boundaries = np.searchsorted(trace.time_us, np.array(inside[-_MAX_STEPS:], np.int64))
    return _over(replay, boundaries, marker, sites, MIN_RISES)


def _over(replay: Replay, boundaries: Ints, marker: str, sites: Sequence[Site], rises: int) -> StepGrowth:
    """What grew between boundaries (event numbers), at each of at least the last `rises`."""
    if not len(boundaries):
        return StepGrowth(marker, 0, (), ())
    levels = tuple(int(replay.curve[max(int(at) - 1, 0)]) for at in boundaries)
    steps = len(boundaries) - 1
    growing = _growing(replay, boundaries, sites, rises) if steps >= rises else []
    return StepGrowth(
        marker, steps, levels, tuple(sorted(growing, key=lambda grown: (-grown.bytes_per_step, grown.site)))
    )


def _marker(annotations: Sequence[Annotation]) -> tuple[str, list[int]]:
    """The annotation that starts steps, and the times of its starts, in order."""
    by_name: dict[str, list[int]] = {}
    for note in annotations:
        if note.starts:
            by_name.setdefault(re.sub(r"\d+", "N", note.name), []).append(note.time_us)
    for shape in _MARKERS:
        matching = [(min(times), name) for name, times in by_name.items() if re.match(shape, name, re.IGNORECASE)]
        if matching:
            name = min(matching)[1]
            return name, sorted(by_name[name])
    return "", []


def _growing(replay: Replay, boundaries: Ints, sites: Sequence[Site], least: int) -> list[SiteGrowth]:
    distinct = sorted(set(sites))
    number = {site: at for at, site in enumerate(distinct)}
    site_of_stack = np.array([number[site] for site in sites], np.int64)
    site = site_of_stack[replay.stacks]
    kept = np.bincount(site[replay.live], weights=replay.sizes[replay.live], minlength=len(distinct))
    growing = []
    survivors = np.flatnonzero(kept > 0)
    chosen = np.isin(site, survivors)
    place = np.searchsorted(survivors, site[chosen])
    levels = _levels(replay, chosen, place, boundaries, len(survivors))
    rises = np.diff(levels, axis=0)
    for column, at in enumerate(survivors.tolist()):
        flat = np.flatnonzero(rises[:, column] <= 0)
        run = rises[flat[-1] + 1 if len(flat) else 0 :, column]
        if len(run) >= least:
            growing.append(SiteGrowth(distinct[at], float(run.mean()), len(run), int(kept[at])))
    return growing


def _levels(replay: Replay, chosen: npt.NDArray[np.bool_], place: Ints, boundaries: Ints, width: int) -> Ints:
    """Bytes alive of each site (columns) when each step begins (rows)."""
    rows = len(boundaries) + 1
    born = np.searchsorted(boundaries, replay.born[chosen], "right")
    died = np.searchsorted(boundaries, replay.died[chosen], "right")
    change = np.zeros((rows, width), np.int64)
    np.add.at(change, (born, place), replay.sizes[chosen])
    freed = replay.died[chosen] < replay.events
    np.subtract.at(change, (died[freed], place[freed]), replay.sizes[chosen][freed])
    return np.cumsum(change, axis=0)[:-1]
