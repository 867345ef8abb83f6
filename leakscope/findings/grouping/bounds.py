"""What speaks against a leak: a bound that is not reached yet, memory that went on without it, too few looks that saw
it grow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import accumulate, pairwise
from statistics import median

from leakscope.findings.counters import disturbed_steps
from leakscope.findings.facts import Bounded, CameToRest, FollowsInput, HeldByCall, TooLarge
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import Group
from leakscope.findings.grouping.growth import Series
from leakscope.findings.kinds import Origin, Severity
from leakscope.findings.model import Finding
from leakscope.findings.thresholds import memory_there
from leakscope.graph.model import HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.ownership import BUILT_WITH, is_library_line
from leakscope.record.model import Look, Rank

WENT_ON = 0.4
"""What has grown on as it did adds at least this share of its rate, times the steps, to the counted bytes."""
_COUNTED = 0.5
"""Memory that the allocator counts raised the counted bytes by this share of what it grew, while it was looked at."""
_TELLING = 4 << 20
"""Bytes to be expected before what was counted says something: on the host everything else is counted with them."""
_OTHERS = 0.2
"""Share of all that grows by which other memory may have risen or fallen meanwhile."""
_MIN_FALL = 1 << 20
"""Bytes, chosen: a smaller fall of the counted memory says nothing."""
_STILL = 6
"""Steps to the end over which memory that has come to rest is seen to be still."""
MOST_OF_MEMORY = 0.25
"""Share of all memory that a bounded container may come to hold; chosen."""
_AS_INPUT = 2.2
"""Power of the input's growth by which what follows it may have grown: attention has the square of a sequence's length,
and a tenth is for what is padded. At 1 attention is a leak, at 3 a torch.cat of ten steps whose inputs vary by half.
"""
_OF_GRAPHS = (ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED)
_IN_STEP = 0.1
"""Share of its rate by which the counted bytes still rise at a median step once it has."""


class Course(StrEnum):
    """What the counted bytes say of something after the last snapshot that saw it grow."""

    WENT_ON = "went on"
    """It grew on, or they do not tell."""
    STOPPED = "stopped"
    """They stayed still step for step, or fell by all that it held, or never came higher."""
    SLOWER = "slower"
    """They rose by far less than it would have, which another release of memory may explain as well."""


def went_on(rank: Rank, line: Series, rate: float) -> bool:
    """Whether nothing that was counted after the last snapshot speaks against growth without a holder."""
    return course(rank, line, rate) == Course.WENT_ON


def course(rank: Rank, line: Series, rate: float, growing: Sequence[Series] = (), rested: bool = False) -> Course:
    """What the counted bytes say of growth by `rate` a step after its last snapshot; `growing` is all that grew.

    A counter acquits only what it positively saw stop or go. A mere shortfall leaves the case open, for what else was
    released meanwhile is counted too. Rises and falls of our own watched steps are left out, and so is the first
    collection, which frees the garbage of the start. A fall of more than it can hold by then, and not of all together,
    is of something else, and left out; so is a single one of less than it holds. Where a look at the end saw that it
    `rested`, counted bytes that are too few to tell it alone bear that out.
    """
    counted = {s.number: s for s in rank.steps if s.counted_bytes is not None}
    first, last = line.steps[0], line.steps[-1]
    later = [number for number in counted if number > last]
    if (
        first not in counted
        or last not in counted
        or len(later) <= 1
        or counted[first].counted_on != counted[later[-1]].counted_on
    ):
        return Course.WENT_ON
    ours = disturbed_steps(rank)

    def rose(start: int, end: int) -> int:
        return (counted[end].counted_bytes or 0) - (counted[start].counted_bytes or 0)

    if rose(first, last) < _COUNTED * line.total:
        return Course.WENT_ON
    rises = [(after, 0 if after in ours else rose(before, after)) for before, after in pairwise([last, *later])]
    if _was_let_go(rises, last, growing):
        return Course.STOPPED
    plain = [rise for after, rise in rises[1:] if after not in ours]
    seen = [rose(a, b) for a, b in pairwise(n for n in counted if first <= n <= last)]
    if _came_to_rest(seen, plain, line, rate):
        return Course.STOPPED
    quiet = sum(after in ours for after, _ in rises[1:])
    expected = rate * (later[-1] - later[0] - quiet)
    if expected < (0 if rested else _TELLING) or later[-1] - later[0] < last - first:
        return Course.WENT_ON
    held = [(rise, line.bytes[-1] + rate * (after - 1 - last)) for after, rise in rises[1:]]
    own = [(rise, most) for rise, most in held if -rise <= most]
    if sum(rise for rise, _ in own) - _of_others(own) >= WENT_ON * expected:
        return Course.WENT_ON
    return Course.SLOWER if _comes_higher([rise for rise, _ in own], line.bytes[-1]) else Course.STOPPED


def _comes_higher(rises: Sequence[float], held: float) -> bool:
    """Whether what was held at first rises to new heights in the later half of the steps: it is not full, nor emptied
    again and again.
    """
    levels = list(accumulate(rises, initial=held))
    half = len(levels) // 2
    return max(levels[half:]) > (1 + _OTHERS) * max(levels[:half])


def _came_to_rest(seen: Sequence[int], later: Sequence[int], line: Series, rate: float) -> bool:
    """Whether what rose step for step, while it was looked at, then stayed still for as many steps at least, to the
    end.

    A median step is not moved by what something else took or let go of at one, so little memory is enough to tell it
    by.
    """
    rest = later[len(later) // 2 :]
    if line.pauses or len(rest) < _STILL or len(later) < len(seen) or median(seen) < _COUNTED * rate:
        return False
    return abs(median(rest)) < _IN_STEP * rate and sum(rise >= _COUNTED * rate for rise in rest) <= 1


def _of_others(rises: Sequence[tuple[float, float]]) -> float:
    """The one fall that is of something else: no other comes near it, and it is not all that was held by then."""
    (fall, held), *others = sorted(rises)[:2] or [(0.0, 0.0)]
    alone = not others or others[0][0] > fall / 2
    return fall if fall < 0 and alone and -fall < (1 - _OTHERS) * held else 0


def follows_input(rank: Rank, line: Series, counts: Collection[int]) -> FollowsInput | None:
    """Whether as many tensors at each look were larger only where the model was given more; `counts` are their numbers.

    What accumulates is larger whatever comes in; a new tensor that is made from the last one is judged by the source.
    """
    if len(set(counts)) > 1 or not all(line.bytes):
        return None
    noted = [(step.number, step.input_elements) for step in rank.steps if step.input_elements]
    given = [next((size for number, size in reversed(noted) if number <= step), 0) for step in line.steps]
    if not all(given):
        return None
    rises = [
        (b - a, after - before) for (a, b), (before, after) in zip(pairwise(line.bytes), pairwise(given), strict=True)
    ]
    if any(size > 0 >= more for size, more in rises):
        return None
    if line.bytes[-1] / line.bytes[0] > (given[-1] / given[0]) ** _AS_INPUT:
        return None
    return FollowsInput((given[0], given[-1]))


def _was_let_go(rises: Sequence[tuple[int, float]], last: int, growing: Sequence[Series]) -> bool:
    """Whether the counted bytes fell once by about all that was growing, did not come straight back, and have not come
    higher since: what fell may have been something else of that size.
    """
    held, rate = sum(line.bytes[-1] for line in growing), sum(line.per_step for line in growing)
    for place, (after, rise) in enumerate(rises[:-1]):
        everything = held + rate * (after - 1 - last)
        if abs(-rise - everything) <= _OTHERS * everything and everything >= _MIN_FALL:
            since = list(accumulate(more for _, more in rises[place + 1 :]))
            return since[0] < _COUNTED * everything and max(since) <= (1 + _OTHERS) * everything
    return False


def gaining(at: Mapping[int, tuple[Look, Group]]) -> list[int]:
    """Positions on the group's path of the containers that have gained items; `at` has the group at each look."""
    places = sorted(at)
    group = at[places[-1]][1]
    positions = []
    for place in range(len(group.path)):
        if group.many is not None and place == group.many.place:
            positions.append(place)
            continue
        items = [_items_at(there.heap, seen.path, place) for there, seen in (at[k] for k in places)]
        if items[-1] > items[0] >= 0:
            positions.append(place)
    return positions


def bound_on(at: Mapping[int, tuple[Look, Group]], places: Sequence[int]) -> Bounded | None:
    """What the container that gains would hold when full, None where it has no bound, is full already, or is one of
    ever more
    itself. `places` are those of `gaining`.
    """
    *_, before, last = [at[k] for k in sorted(at)] if len(at) > 1 else [None, None]
    if len(places) != 1 or before is None or last is None:
        return None
    look, group = last
    place = places[0]
    label = look.heap.object(int(look.heap.holder[group.path[place]])).label
    bound = re.search(r", max(?:len|size) (\d+)$", label)
    items = _items_at(look.heap, group.path, place)
    if bound is None or items >= int(bound[1]) <= _items_at(before[0].heap, before[1].path, place):
        return None
    more = items - _items_at(before[0].heap, before[1].path, place)
    each = (
        (group.bytes - before[1].bytes) / more if more > 0 else group.bytes / items
    )  # one of them may have another holder
    return Bounded(items, int(bound[1]), full_bytes=round(each * int(bound[1])))


def _items_at(graph: HeapGraph, path: Sequence[int], place: int) -> int:
    """Items of the container at this place of a path, -1 where there is none; an lru_cache has one for each result on
    the graph, a ModuleList one for each module.
    """
    if place >= len(path):
        return -1
    reference = graph.reference(path[place])
    holder = graph.object(reference.holder)
    if holder.kind == ObjectKind.NN_MODULE and reference.name.startswith("["):
        return len(graph.out_of(holder.index))
    if holder.kind != ObjectKind.CONTAINER:
        return -1
    return holder.size if holder.size >= 0 else len(graph.out_of(holder.index))


def too_large(candidate: Candidate, rank: Rank) -> TooLarge | None:
    """The bound that is no reason to let it grow: it would hold graphs, modules or parameters, or too many bytes.

    Each of those is more than a person sees who writes the bound: all that a graph has saved, a whole model.
    """
    if candidate.bound is None:
        return None
    there = memory_there(rank, candidate.on_device)
    holds = holds_of(candidate)
    much = there is not None and candidate.bound.full_bytes > MOST_OF_MEMORY * there
    return TooLarge(candidate.bound, holds, there) if holds or much else None


def holds_of(candidate: Candidate) -> str:
    """`graphs`, `modules` or `parameters`, where a container that gains holds such; "" where it holds plain tensors."""
    below = candidate.objects[candidate.gaining + 1 : candidate.tensor_at + 1]
    if any(r.kind in _OF_GRAPHS for r in candidate.references[candidate.tensor_at :]):
        return "graphs"
    if any(o.kind == ObjectKind.NN_MODULE for o in below):
        return "modules"
    return "parameters" if any(o.kind == ObjectKind.PARAMETER for o in below) else ""


def running_library(candidate: Candidate) -> str:
    """The package, of those that scripts are built with, whose running call has what grows as a local variable, or in
    plain containers on one; "" where there is none. It is let go of when the call returns, as LBFGS's directions are.
    """
    frame, *below = candidate.objects[: max(candidate.gaining, 0) + 1]
    package = frame.where[1:].partition("/")[0] if is_library_line(frame.where) else ""
    inside = frame.kind == ObjectKind.FRAME and all(o.kind == ObjectKind.CONTAINER for o in below)
    return package if inside and candidate.gaining > 0 and package in BUILT_WITH else ""


def downgraded(finding: Finding, candidate: Candidate) -> Finding:
    """A note where something speaks against a leak."""
    if candidate.group.freed:
        return finding
    if package := running_library(candidate):
        held = HeldByCall(package)
        return replace(finding, severity=Severity.NOTE, origin=Origin.LIBRARY, library=package, settled_by=held)
    bound = candidate.bound if candidate.too_large is None else None
    rest = CameToRest(candidate.series.steps[-1]) if candidate.ended else None
    settled_by = candidate.follows or bound or rest
    if settled_by is None and candidate.too_large is not None:
        finding = replace(finding, too_large=candidate.too_large)
    if settled_by is not None:
        return replace(finding, severity=Severity.NOTE, settled_by=settled_by)
    return finding if candidate.certain else replace(finding, severity=Severity.NOTE)


def is_open(finding: Finding, candidate: Candidate) -> bool:
    """Whether it would be a leak if more looks had seen it grow."""
    bounded = candidate.bound and candidate.too_large is None
    settled = candidate.ended or candidate.follows or bounded or running_library(candidate)
    return finding.severity == Severity.LEAK and not (candidate.certain or settled)
