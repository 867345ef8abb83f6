"""Which groups grow, and which garbage comes back?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np

from leakscope.findings.counters import counted_rate, counted_steps, rose_each_step
from leakscope.findings.grouping.bounds import WENT_ON, Course, bound_on, course, follows_input, gaining, too_large
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import Group, Key
from leakscope.findings.grouping.growth import MIN_LOOKS, Series
from leakscope.findings.grouping.over_looks import GroupsOverLooks, by_program, groups_over
from leakscope.graph.model import IMMORTAL, HeapGraph
from leakscope.record.kinds import Occasion
from leakscope.record.model import Collection, Look, Rank

_RESTED = 3
"""Steps after the last judged look over which what has not grown at all is taken to have come to rest; chosen."""
_COLLECTED = 0.9
"""Share of the bytes that a collection frees of what it collects; the rest may be in use, or of something else.
Heuristic: half would take what only shares its storages with garbage for garbage.
"""
_AS_FAST = 0.5
"""Share of its rate at which something has grown on. At 0.25 a cache that fills ever more slowly has, at 0.8 a list
whose items are smaller in the last batches of an epoch has not.
"""
_SEVERAL = 4
"""Storages that what began late has at the only look that saw it, heuristic: at 2 the copy of a layer that a program
makes once is taken for growth, at 8 validations that are few and far apart are not.
"""
_STEPS_OF_HALF = 8
"""Steps over which the counters have to rise for each half of what that look did not see. At 4 an optimizer that is
made late is such growth, at 16 a leak in a run of 40 steps is none.
"""
_PART = 0.25
"""Share of what the counters rose by before that look that it has. At 0.1 what was made once is taken for the growth of
another, at 0.5 the tensors of a graph are not found beside its nodes.
"""
_MISSED = 2
"""Items that something must have missed by the end to have come to rest. At 1 what comes every 20 steps is at rest in
any 20 steps that end just before the next; at 4 a list that was full for three steps is not.
"""


def candidates_of(rank: Rank, looks: Sequence[Look]) -> list[Candidate]:
    """Groups that grow over some looks of a rank, and garbage that comes back."""
    return candidates_among(rank, groups_over(looks))


def candidates_among(rank: Rank, groups: GroupsOverLooks) -> list[Candidate]:
    """The same, of groups that are known."""
    at_the_end = _at_the_end(rank, groups)
    live = [key for key, at in groups.at.items() if not at[max(at)][1].freed]
    growing = [groups.lines[key] for key in live if groups.lines[key].grows]
    candidates = (_candidate(rank, groups, key, at_the_end, growing) for key in groups.at)
    return [candidate for candidate in candidates if candidate is not None]


def _candidate(
    rank: Rank, groups: GroupsOverLooks, key: Key, end: tuple[int, Mapping[Key, int]], growing: Sequence[Series]
) -> Candidate | None:
    """One group as a candidate; None where it does not grow."""
    at, line = groups.at[key], groups.lines[key]
    (ended, at_the_end), last = end, groups.steps[-1]
    at, collected = _as_collected(rank, line, at)
    telling = _telling_look(at)
    look, group = at[telling]
    began_late = by_program(group) and not line.grows
    longer = _to_the_end(rank, line, ended, at_the_end.get(key, 0)) if began_late else None
    if began_late and longer is None:
        longer = _by_counters(rank, line, len(group.storages))
    rate, recreated = _rate(rank, longer or line, group, groups.garbage)
    if look.occasion == Occasion.BLOCK:  # one look after a block of code: whatever it left unreachable is its own
        rate = float(group.bytes) if group.freed else 0.0
    elif longer is None and by_program(group):
        missed = _would_have_grown(line, group, ended - last)
        if not line.grows or (missed and at_the_end.get(key) == line.bytes[-1]):
            return None
    if rate <= 0:
        return None
    more = at_the_end.get(key, 0) - line.bytes[-1]
    confirmed = longer is not None or more >= _AS_FAST * rate * (ended - last) > 0
    rested = (
        key in at_the_end and _would_have_grown(line, group, ended - last) and more < WENT_ON * rate * (ended - last)
    )
    live = group.freed == 0 and look.occasion != Occasion.BLOCK
    doubtful = live and not confirmed and _is_counted(look, group)
    later = course(rank, line, rate, growing, rested) if doubtful else Course.WENT_ON
    stopped = later == Course.STOPPED or (rested and later == Course.SLOWER)
    ended = doubtful and (stopped or _by_chance(rank, line, rate, at))
    places = gaining(at) if live and look is at[max(at)][0] else []
    candidate = Candidate(
        rank.number,
        look.step,
        look.heap,
        group,
        line,
        rate,
        recreated,
        storages_at={there.step: other.storages for there, other in at.values()},
        roots=tuple(at[there][1].roots for there in sorted(at)),
        made_at=made_at((there.heap, other.storages) for there, other in at.values()),
        confirmed=confirmed,
        stopped=(live and _has_stopped(rank, line, rate) and _is_counted(look, group))
        or (later == Course.SLOWER and not ended),
        ended=ended,
        follows=follows_input(rank, line, [len(other.storages) for _, other in at.values()]) if live else None,
        gaining=places[-1] if places else -1,
        look=telling,
        collected=collected,
        above_gains=len(places) > 1,
        bound=bound_on(at, places),
    )
    return replace(candidate, too_large=too_large(candidate, rank))


def _as_collected(
    rank: Rank, line: Series, at: Mapping[int, tuple[Look, Group]]
) -> tuple[Mapping[int, tuple[Look, Group]], int]:
    """(The group at each look, as collecting has shown it to be; full collections that freed what seemed alive).

    What is worked out from counts of references is a prediction: a collection that was seen to free the storages, or
    to leave them, decides.
    """
    last = max(at)
    look, group = at[last]
    diff, freed = rank.gc_diff, group.freed
    collected = 0
    if diff is not None and diff.after == look.occasion and look.step == _last_step(rank, diff.after):
        went = np.isin(np.asarray(group.storages), np.asarray(diff.freed_storages))
        share = int(look.heap.bytes[np.asarray(group.storages)[went]].sum()) / max(group.bytes, 1)
        if freed > 0 and share <= 1 - _COLLECTED:
            freed = IMMORTAL
        elif freed == IMMORTAL and share >= _COLLECTED:
            freed = max(diff.collections, 1)
        elif freed == 0 and share >= _COLLECTED:
            collected = max(diff.collections, 1)
    elif freed > 0 and _outlived(rank, line, freed):
        freed = IMMORTAL
    if freed == group.freed:
        return at, collected
    return {step: (there, replace(seen, freed=freed)) for step, (there, seen) in at.items()}, collected


def _last_step(rank: Rank, occasion: Occasion) -> int:
    return max((look.step for look in rank.looks if look.occasion == occasion), default=-1)


def _outlived(rank: Rank, line: Series, collections: int) -> bool:
    """Whether as many full collections of the program's own as free such garbage came between two looks, freed far less
    than there was of it, and all of it was still there.
    """
    looks = zip(line.steps, line.bytes, strict=True)
    for (before, had), (after, held) in pairwise(looks):
        between = [c for _, c in _collections(rank, before, after)]
        full = sum(c.is_full for c in between)
        freed = [c.freed_bytes for c in between if c.freed_bytes is not None]
        known = len(freed) == len(between)
        if had and held >= had and full >= collections and known and sum(freed) <= (1 - _COLLECTED) * had:
            return True
    return False


def made_at(seen: Iterable[tuple[HeapGraph, Sequence[int]]]) -> dict[str, int]:
    """Bytes of storages by the line that made them, of those whose maker was seen."""
    made: dict[str, int] = defaultdict(int)
    for graph, storages in seen:
        for storage in storages:
            if storage in graph.made_at:
                made[graph.made_at[storage]] += int(graph.bytes[storage])
    return dict(made)


def _by_chance(rank: Rank, line: Series, rate: float, at: Mapping[int, tuple[Look, Group]]) -> bool:
    """Whether three looks alone saw as many storages become larger, and the counters of all steps saw next to nothing.

    Sizes that vary, of images or sentences, rise twice in a row one time in six.
    """
    counts = {len(group.storages) for _, group in at.values()}
    if len(line.steps) > MIN_LOOKS or len(counts) > 1:
        return False
    counted = counted_rate(rank, line.steps[0] - 1)
    return counted is not None and counted < _AS_FAST * rate


def _to_the_end(rank: Rank, line: Series, ended: int, size: int) -> Series | None:
    """The same series with the end of the main code as a last point, where it grows by that and the counters bear it
    out: what began late was seen to grow at too few looks. None where it does not, or where the looks are too few to
    tell that it began late.
    """
    if len(line.steps) < MIN_LOOKS or line.total <= 0 or line.steps[-1] >= ended or size <= line.bytes[-1]:
        return None
    counted = {step.number: step.counted_bytes or 0 for step in counted_steps(rank)}
    more = size - line.bytes[-1]
    before, after = counted.get(line.steps[-1]), counted.get(max(counted, default=0))
    if before is None or after is None or after - before < _AS_FAST * more:
        return None
    longer = Series((*line.steps, ended), (*line.bytes, size))
    return longer if longer.grew_lately else None


def _by_counters(rank: Rank, line: Series, items: int) -> Series | None:
    """The same series with the last step as a last point, where the last look alone saw it grow, by many items, and the
    counters rose as fast in each half of the steps before that look and of those after it. None where they did not.

    Looks at short steps are a hundred steps apart: what is kept by each validation may be seen by one of them, and is
    let go of with the function that has it before the main code returns.
    """
    rises = [b > a for a, b in pairwise(line.bytes)]
    counted = {step.number: step.counted_bytes or 0 for step in counted_steps(rank)}
    if len(line.steps) < MIN_LOOKS or rises[-1:] != [True] or any(rises[:-1]) or items < _SEVERAL:
        return None
    before, last = line.steps[-2:]
    more, end = line.bytes[-1] - line.bytes[-2], max(counted, default=0)
    if before not in counted or last not in counted:
        return None
    numbers = sorted(counted)
    places = [numbers.index(step) for step in (before, last, end)]
    halves = [
        pair
        for first, second in pairwise(places)
        for pair in pairwise(numbers[k] for k in (first, (first + second) // 2, second))
    ]
    rate = more / (last - before)
    rose = [(counted[b] - counted[a], b - a) for a, b in halves]
    if any(steps < _STEPS_OF_HALF or size < _AS_FAST * rate * steps for size, steps in rose):
        return None
    seen = rose[0][0] + rose[1][0]
    if more < _PART * seen:
        return None
    return Series((*line.steps, end), (*line.bytes, line.bytes[-1] + round(rate * (end - last))))


def _would_have_grown(line: Series, group: Group, steps: int) -> bool:
    """Whether some items more would have come in so many steps: what comes every 20 steps may pause for 19."""
    rises = [b - a for a, b in pairwise(line.bytes) if b > a]
    item = min([*rises, group.bytes / max(len(group.storages), 1)])
    return line.per_step * steps >= _MISSED * item


def _has_stopped(rank: Rank, line: Series, rate: float) -> bool:
    """Whether it grew at each look and, by the counters, at each step, but not at the last look."""
    if not line.pause_at_end or len(line.steps) < MIN_LOOKS:
        return False
    rested = line.steps[-1] - line.pause_at_end
    return not Series(line.steps[:-1], line.bytes[:-1]).pauses and rose_each_step(rank, line.steps[0], rested, rate)


def _at_the_end(rank: Rank, groups: GroupsOverLooks) -> tuple[int, dict[Key, int]]:
    """The step at which the main code returned, and each live group's bytes then; none where that was soon after the
    last look.

    They acquit what came to rest and confirm what was seen to grow; they accuse nothing.
    """
    end = next((look for look in rank.looks if look.occasion == Occasion.END), None)
    if end is None or not groups.steps or end.step < groups.steps[-1] + _RESTED:
        return 0, {}
    return end.step, {group.key: group.bytes for group in groups.of(end.heap) if by_program(group)}


def _is_counted(look: Look, group: Group) -> bool:
    """Whether the counted bytes are of the memory that the group is in."""
    return (look.counted_on != "cpu") == any(s in look.heap.device for s in group.storages)


def _telling_look(at: Mapping[int, tuple[Look, Group]]) -> int:
    """The last look, unless gc had just emptied the group: then the one that shows most."""
    most = max(at, key=lambda step: (at[step][1].bytes, step))
    last = max(at)
    return last if at[last][1].bytes * 2 >= at[most][1].bytes else most


def _rate(rank: Rank, line: Series, group: Group, garbage: Mapping[int, int]) -> tuple[float, bool]:
    """Bytes a step, and whether garbage came back after the program's own gc had freed some.

    What the program's collections freed between two looks is added to the growth, in this group's share of
    the garbage: automatic gc hides a cyclic leak in one run and not in the next.
    """
    if by_program(group):
        return line.per_step, False
    stretches: list[tuple[float, int]] = []
    """Bytes a step that came between two looks, and how many steps that were."""
    recreated = False
    looks = list(zip(line.steps, line.bytes, strict=True))
    for (before, had), (after, held) in pairwise(looks):
        share = held / garbage[after] if garbage[after] else 0.0
        freed = sum(c.freed_bytes or 0 for _, c in _collections(rank, before, after))
        full = [step for step, c in _collections(rank, before, after) if c.is_full]
        if held == had and freed and not full:
            continue  # old, and what went was not it; or as much came as went
        come = max(held - had + share * freed, 0.0) / (after - before) if full or held != had else 0.0
        if full and held:
            recreated = True
            if not freed:  # nobody counted what went; all that is here has come since
                come = max(come, held / max(after - full[-1], 1))
        stretches.append((come, after - before))
    risen = [come for come, _ in stretches if come > 0]
    if len(risen) < 2 and not recreated:  # noqa: PLR2004 - it came once
        return 0.0, False
    if len(risen) == len(stretches):
        return float(median(risen)), recreated
    return sum(come * steps for come, steps in stretches) / sum(steps for _, steps in stretches), recreated


def _collections(rank: Rank, before: int, after: int) -> list[tuple[int, Collection]]:
    """(step, collection) of those that the program ran after one step and up to another."""
    return [(step.number, c) for step in rank.steps if before < step.number <= after for c in step.collections]
