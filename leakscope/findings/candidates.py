"""Groups of storages that grow: the candidates that rules are applied to."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import median

import numpy as np

from leakscope.findings.counters import counted_rate, counted_steps, disturbed_steps, rose_each_step
from leakscope.findings.facts import Bounded, FollowsInput, HeldByCall, Plateaued, TooLarge
from leakscope.findings.grouping import (
    GroupsOverSnapshots,
    ReferenceKey,
    StorageGroup,
    by_program,
    groups_over,
    is_literal,
)
from leakscope.findings.growth import MIN_SNAPSHOTS, Series
from leakscope.findings.naming import (
    ANY_KEY,
    OF_TENSORS,
    as_expression,
    is_transparent,
    line_of,
    numberless,
    own_name,
    written,
)
from leakscope.findings.thresholds import memory_there
from leakscope.graph.model import IMMORTAL, REACHABLE, HeapGraph, Object, ObjectKind, Reference, ReferenceKind, RootKind
from leakscope.graph.ownership import BUILT_WITH, is_library_line
from leakscope.graph.paths import paths_from_roots
from leakscope.run.model import Collection as GcCollection
from leakscope.run.model import HeapSnapshot, Rank
from leakscope.run.rows import Occasion

_CALLBACKS = (ObjectKind.METHOD, ObjectKind.FUNCTION)


@dataclass(frozen=True)
class Candidate:
    """One group of one rank over all judged snapshots, described at the largest."""

    rank: int
    step: int
    """Step of the snapshot of `graph` and `group`."""
    graph: HeapGraph
    group: StorageGroup
    series: Series
    per_step: float
    """Bytes per step."""
    recreated: bool
    """Whether it is garbage that came back after a full collection."""
    storages_at: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Step of each snapshot, mapped to the group's storages in its graph."""
    roots: tuple[int, ...] = ()
    """Number of roots of the same name above the storages, at each snapshot with any."""
    made_at: Mapping[str, int] = field(default_factory=dict)
    """Bytes by allocation site, for storages whose allocation was recorded at any snapshot."""
    grew_to_end: bool = False
    """Whether it had kept growing as fast when the main code returned."""
    plateaued: bool = False
    """Whether the counted bytes of later steps did not continue its growth."""
    may_have_stopped: bool = False
    """Whether it grew at every step but not at the last snapshot, which rules out a pause of periodic growth; or the
    counted bytes rose by far less afterwards, which another release may also explain.
    """
    follows: FollowsInput | None = None
    """Whether the number of tensors was constant, and their size followed the model's input."""
    gaining: int = -1
    """Position on the path of the last container that has gained items; -1 if there is none."""
    snapshot: int = -1
    """Number of that snapshot among the judged ones, ascending; -1 if it is none of them."""
    collected: int = 0
    """For memory that seemed alive, perhaps held by native code: the number of full collections that freed it, if
    tried.
    """
    above_gains: bool = False
    """Whether a container above that one has gained items too."""
    bound: Bounded | None = None
    """Contents of the full bounded container that gains it; None if there is no bound."""
    too_large: TooLarge | None = None
    """The bound, if it does not justify the growth."""
    is_of_container: bool = False
    """Whether it is everything that the last container on the path has gained, not one kind of item."""
    counted: tuple[int, ...] = ()
    """The bytes of the series in the host's counter, if not all."""

    def written(self, reference: int) -> str:
        """A reference on the path as written in code: `model[1].seen in main()`."""
        return as_expression(self.graph, self.group.path, reference, self.names)

    def line(self, reference: int) -> str:
        """The line of a reference on the path."""
        return line_of(self.graph, self.group.path, reference)

    def name(self, reference: int) -> str:
        """The name of a reference: `.seen`, `[i]` for one of many items, `[1]` if everything is below that item."""
        return self.names.get(reference, written(self.graph, self.graph.reference(reference)))

    def key(self, reference: int) -> ReferenceKey:
        """The key of a reference on the path, or of one of the cycle that it is on."""
        if self.group.freed:
            holder = int(self.graph.holder[reference])
            return ReferenceKey.of_reference(self.graph, holder, (reference,), (self.name(reference),))
        path, many = self.group.path, self.group.many
        upto = path[: path.index(reference) + 1]
        names = self.group.key.names(self.graph, upto)
        if many is not None and many.place < len(names):
            names[many.place] = many.name
        return ReferenceKey.of_reference(self.graph, self.group.start, upto, names)

    @cached_property
    def names(self) -> Mapping[int, str]:
        """References on the path with specific names: `[1]` if it is the only one, `.client{i}` for many, `[...]` for
        the items of a dict whose keys are data. On cycles, those whose number is data: `.tracer_{i}`.
        """
        if self.group.freed:
            return dict(self._numbered())
        many, path = self.group.many, self.group.path
        data = {r: ANY_KEY for r in path if is_literal(self.graph.reference(r).name) and self._is_data(r)}
        own = {reference: own_name(self.graph, self.graph.reference(reference)) for reference in self.one_of_its_kind}
        return data | own | ({path[many.place]: many.name} if many else {})

    def _numbered(self) -> Iterator[tuple[int, str]]:
        """References of the group's cycles with numbered keys, without their numbers."""
        keyed = frozenset(part.partition(" ")[0] for part in self.group.key)
        for reference in (r for cycle in self.group.cycles for r in cycle):
            name = written(self.graph, self.graph.reference(reference))
            without = numberless(name)
            if without != name and name.partition(" ")[0] not in keyed and without.partition(" ")[0] in keyed:
                yield reference, without

    def _is_data(self, reference: int) -> bool:
        """Whether the group is the whole content of a dict, under any keys."""
        return self.group.key.masks(self.graph, reference) and self.tensor_at > self.group.path.index(reference) + 1

    @cached_property
    def one_of_its_kind(self) -> frozenset[int]:
        """References on the path, at most to the first tensor, above all the storages, though similar
        ones may exist.
        """
        below = self.storages_below
        shared = (
            r
            for r, held in zip(self.group.path, self.objects[1:], strict=True)
            if below[held.index] == len(self.group.storages)
        )
        return frozenset(r for r in shared if self.graph.object(int(self.graph.held[r])).kind not in OF_TENSORS)

    @cached_property
    def objects(self) -> tuple[Object, ...]:
        """Objects along the path, from its start to the typical storage."""
        return tuple(
            self.graph.object(i) for i in (self.group.start, *(int(self.graph.held[r]) for r in self.group.path))
        )

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """References along the path."""
        return tuple(self.graph.reference(r) for r in self.group.path)

    @cached_property
    def tensor_at(self) -> int:
        """Position of the first tensor on the path that is held itself, not for a list that it carries; for what a
        container has gained, that of the container.
        """
        path = self.group.path
        if self.is_of_container:
            return len(path) - 1
        tensors = [k for k, o in enumerate(self.objects) if o.kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER)]
        held = (k for k in tensors if k == len(path) or not is_transparent(self.graph, path[k]))
        return next(held, len(self.objects) - 1)

    @cached_property
    def before_tensor(self) -> tuple[Object, ...]:
        """Objects on the path down to the first tensor."""
        return self.objects[: self.tensor_at]

    @cached_property
    def container(self) -> tuple[int, Object] | None:
        """(position, object) of the container nearest to the first tensor on the path."""
        places = [k for k, o in enumerate(self.before_tensor) if o.kind == ObjectKind.CONTAINER]
        return (places[-1], self.objects[places[-1]]) if places else None

    @property
    def on_device(self) -> bool:
        """Whether any of its storages is in an accelerator's memory."""
        return any(storage in self.graph.device for storage in self.group.storages)

    @property
    def is_certain(self) -> bool:
        """Whether enough snapshots show growth; garbage need not grow."""
        if self.group.freed != REACHABLE or self.grew_to_end:
            return True
        return self.series.has_enough_rises and not self.may_have_stopped

    @cached_property
    def settled_by(self) -> FollowsInput | Bounded | Plateaued | HeldByCall | None:
        """What contradicts a leak; None if nothing does, and for garbage."""
        if self.group.freed:
            return None
        if package := running_library(self):
            return HeldByCall(package)
        bound = self.bound if self.too_large is None else None
        return self.follows or bound or (Plateaued(self.series.steps[-1]) if self.plateaued else None)

    @property
    def callback(self) -> Object | None:
        """The function or method that native code keeps and that leads to everything, such as an exit handler."""
        start = self.objects[0]
        return start if start.root == RootKind.NATIVE and start.kind in _CALLBACKS else None

    @property
    def gained(self) -> Object | None:
        """The container that gained items."""
        return self.objects[self.gaining] if self.gaining >= 0 else None

    def through(self, *kinds: str) -> int | None:
        """Position of the first object of one of these kinds before the first tensor, below roots."""
        places = (k for k, o in enumerate(self.before_tensor) if o.kind in kinds and not (k == 0 and o.root))
        return next((k for k in places if not self.is_above(k)), None)

    def is_above(self, position: int) -> bool:
        """Whether the object is common to all storages and has what gains them: a thread that owns a queue, not one of
        many threads.
        """
        below = self.objects[position + 1 : self.tensor_at + 1]
        return any(self.is_for_all(o) for o in below)

    def is_for_all(self, holder: Object) -> bool:
        """Whether more than half of the storages are below this object."""
        return 2 * self.storages_below[holder.index] > len(self.group.storages)

    @cached_property
    def storages_below(self) -> Counter[int]:
        """Objects on the paths from the roots to the storages, with the number of paths through each."""
        return paths_from_roots(self.graph).storages_below(self.graph, self.group.storages)

    @property
    def keeps_its_number(self) -> int:
        """Number of storages if it is constant over the snapshots, else 0."""
        counts = {len(storages) for storages in self.storages_at.values()}
        return counts.pop() if len(counts) == 1 and len(self.storages_at) > 1 else 0

    def reference_through(self, *kinds: str) -> Reference | None:
        """The first reference on the path of one of these kinds."""
        return next((r for r in self.references if r.kind in kinds), None)


CONTINUED = 0.4
"""Minimum share of its rate, times the steps, by which the counted bytes rise while it keeps growing."""
_COUNTED_SHARE = 0.5
"""Minimum share of its growth by which the counted bytes rose between snapshots if the allocator counts its memory."""
_MIN_EVIDENCE = 4 << 20
"""Minimum expected bytes for the counters to be conclusive: the host's count everything."""
_OTHER_MEMORY_SHARE = 0.2
"""Share of all growth by which other memory may have changed meanwhile."""
_MIN_FALL = 1 << 20
"""Minimum fall of the counted bytes to be conclusive. Heuristic."""
_MIN_CONSTANT_STEPS = 6
"""Steps up to the end over which stopped memory is seen to be constant."""
MOST_OF_MEMORY = 0.25
"""Maximum share of all memory that a bounded container may reach. Heuristic."""
_AS_INPUT = 2.2
"""Power of the input's growth up to which memory follows it: attention grows with the square of the sequence length,
and a tenth allows for padding. At 1 attention is a leak, at 3 a torch.cat of ten steps whose inputs vary by half.
"""
_OF_GRAPHS = (ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED)
_IN_STEP = 0.1
"""Share of its rate by which the counted bytes rise at a median step while it grows."""


class CounterEvidence(StrEnum):
    """What the counted bytes show about something after the last snapshot in which it grew."""

    CONTINUED = "went on"
    """It kept growing, or they are not conclusive."""
    STOPPED = "stopped"
    """They were constant step by step, or fell by all that it held, or reached no new height."""
    SLOWER = "slower"
    """They rose by far less than expected, which another release may also explain."""


def continued(rank: Rank, line: Series, rate: float) -> bool:
    """Whether nothing counted after the last snapshot contradicts growth without a holder."""
    return course(rank, line, rate) == CounterEvidence.CONTINUED


def course(
    rank: Rank, line: Series, rate: float, growing: Sequence[Series] = (), rested: bool = False
) -> CounterEvidence:
    """What the counted bytes show about growth by `rate` a step after its last snapshot; `growing` is everything that
    grew.

    Growth is discarded only if the counters show a stop or a release. A mere shortfall is not conclusive, since other
    releases are counted too. Changes from watched steps are left out, and so is the first collection, which frees the
    garbage of the start. A fall larger than what it can hold, except of everything together, is due to something else
    and left out; so is a single one smaller than what it holds. If a snapshot at the end shows that growth stopped
    (`rested`), counted bytes that are too few to be conclusive alone confirm it.
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
        return CounterEvidence.CONTINUED
    ours = disturbed_steps(rank)

    def rose(start: int, end: int) -> int:
        return (counted[end].counted_bytes or 0) - (counted[start].counted_bytes or 0)

    if rose(first, last) < _COUNTED_SHARE * line.total:
        return CounterEvidence.CONTINUED
    rises = [(after, 0 if after in ours else rose(before, after)) for before, after in pairwise([last, *later])]
    if _was_released(rises, last, growing):
        return CounterEvidence.STOPPED
    plain = [rise for after, rise in rises[1:] if after not in ours]
    seen = [rose(a, b) for a, b in pairwise(n for n in counted if first <= n <= last)]
    if _came_to_rest(seen, plain, line, rate):
        return CounterEvidence.STOPPED
    quiet = sum(after in ours for after, _ in rises[1:])
    expected = rate * (later[-1] - later[0] - quiet)
    if expected < (0 if rested else _MIN_EVIDENCE) or later[-1] - later[0] < last - first:
        return CounterEvidence.CONTINUED
    held = [(rise, line.bytes[-1] + rate * (after - 1 - last)) for after, rise in rises[1:]]
    own = [(rise, most) for rise, most in held if -rise <= most]
    if sum(rise for rise, _ in own) - _of_others(own) >= CONTINUED * expected:
        return CounterEvidence.CONTINUED
    return (
        CounterEvidence.SLOWER if _comes_higher([rise for rise, _ in own], line.bytes[-1]) else CounterEvidence.STOPPED
    )


def _comes_higher(rises: Sequence[float], held: float) -> bool:
    """Whether what was held at first reaches new heights in the later half of the steps: it is neither full nor emptied
    repeatedly.
    """
    levels = list(accumulate(rises, initial=held))
    half = len(levels) // 2
    return max(levels[half:]) > (1 + _OTHER_MEMORY_SHARE) * max(levels[:half])


def _came_to_rest(seen: Sequence[int], later: Sequence[int], line: Series, rate: float) -> bool:
    """Whether memory that rose step by step between snapshots was then constant for at least as many steps, up to the
    end.

    The median step is not affected by single allocations and releases of others, so little memory is enough to tell.
    """
    rest = later[len(later) // 2 :]
    few = len(rest) < _MIN_CONSTANT_STEPS or len(later) < len(seen)
    if line.has_pauses or few or median(seen) < _COUNTED_SHARE * rate:
        return False
    return abs(median(rest)) < _IN_STEP * rate and sum(rise >= _COUNTED_SHARE * rate for rise in rest) <= 1


def _of_others(rises: Sequence[tuple[float, float]]) -> float:
    """The single fall that is due to something else: no other is close to it, and it is not everything held by then."""
    (fall, held), *others = sorted(rises)[:2] or [(0.0, 0.0)]
    alone = not others or others[0][0] > fall / 2
    return fall if fall < 0 and alone and -fall < (1 - _OTHER_MEMORY_SHARE) * held else 0


def follows_input(rank: Rank, line: Series, counts: Collection[int]) -> FollowsInput | None:
    """Whether equally many tensors at each snapshot were larger only where the model's input was; `counts` are their
    numbers.

    What accumulates grows with any input; a new tensor made from the previous one is judged by the source.
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


def _was_released(rises: Sequence[tuple[int, float]], last: int, growing: Sequence[Series]) -> bool:
    """Whether the counted bytes fell once by about everything that was growing and have not risen as high since; a fall
    of that size may be due to something else.
    """
    held, rate = sum(line.bytes[-1] for line in growing), sum(line.per_step for line in growing)
    for place, (after, rise) in enumerate(rises[:-1]):
        everything = held + rate * (after - 1 - last)
        if abs(-rise - everything) <= _OTHER_MEMORY_SHARE * everything and everything >= _MIN_FALL:
            since = list(accumulate(more for _, more in rises[place + 1 :]))
            return since[0] < _COUNTED_SHARE * everything and max(since) <= (1 + _OTHER_MEMORY_SHARE) * everything
    return False


def gaining(at: Mapping[int, tuple[HeapSnapshot, StorageGroup]]) -> list[int]:
    """Positions on the group's path of containers that have gained items; `at` has the group at each snapshot."""
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


def bound_on(at: Mapping[int, tuple[HeapSnapshot, StorageGroup]], places: Sequence[int]) -> Bounded | None:
    """Contents of the growing container when full; None if it has no bound, is full, or is itself one of ever more.
    `places` are those of `gaining`.
    """
    *_, before, last = [at[k] for k in sorted(at)] if len(at) > 1 else [None, None]
    if len(places) != 1 or before is None or last is None:
        return None
    snapshot, group = last
    place = places[0]
    label = snapshot.heap.object(int(snapshot.heap.holder[group.path[place]])).label
    bound = re.search(r", max(?:len|size) (\d+)$", label)
    items = _items_at(snapshot.heap, group.path, place)
    if bound is None or items >= int(bound[1]) <= _items_at(before[0].heap, before[1].path, place):
        return None
    more = items - _items_at(before[0].heap, before[1].path, place)
    each = (
        (group.bytes - before[1].bytes) / more if more > 0 else group.bytes / items
    )  # one of them may have another holder
    return Bounded(items, int(bound[1]), full_bytes=round(each * int(bound[1])))


def _items_at(graph: HeapGraph, path: Sequence[int], place: int) -> int:
    """Items of the container at this position of a path, -1 if there is none; an lru_cache has one for each result on
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
    """The bound that does not justify the growth: it would hold graphs, modules or parameters, or too many bytes.

    Whoever writes the bound rarely sees how much each of those is: everything that a graph has saved, a whole model.
    """
    if candidate.bound is None:
        return None
    there = memory_there(rank, candidate.on_device)
    holds = holds_of(candidate)
    much = there is not None and candidate.bound.full_bytes > MOST_OF_MEMORY * there
    return TooLarge(candidate.bound, holds, there) if holds or much else None


def holds_of(candidate: Candidate) -> str:
    """`graphs`, `modules` or `parameters` if a growing container holds them; "" if it holds plain tensors."""
    below = candidate.objects[candidate.gaining + 1 : candidate.tensor_at + 1]
    if any(r.kind in _OF_GRAPHS for r in candidate.references[candidate.tensor_at :]):
        return "graphs"
    if any(o.kind == ObjectKind.NN_MODULE for o in below):
        return "modules"
    return "parameters" if any(o.kind == ObjectKind.PARAMETER for o in below) else ""


def running_library(candidate: Candidate) -> str:
    """The package whose running call has the growing memory in a local variable, or in plain containers of one; "" if
    there is none. It is released when the call returns, as LBFGS's directions are.
    """
    frame, *below = candidate.objects[: max(candidate.gaining, 0) + 1]
    package = frame.where[1:].partition("/")[0] if is_library_line(frame.where) else ""
    inside = frame.kind == ObjectKind.FRAME and all(o.kind == ObjectKind.CONTAINER for o in below)
    return package if inside and candidate.gaining > 0 and package in BUILT_WITH else ""


_MIN_STEPS_WITHOUT_GROWTH = 3
"""Steps after the last judged snapshot without any growth after which it counts as stopped. Heuristic."""
_MIN_COLLECTED_SHARE = 0.9
"""Minimum share of the bytes that a collection frees of what it collects; the rest may be in use. Heuristic: with half,
memory that only shares storages with garbage counts as garbage.
"""
_MIN_COUNTER_RATE = 0.5
"""Minimum share of its rate at which something has kept growing. At 0.25 a cache that fills ever more slowly counts, at
0.8 a list whose items are smaller at the end of an epoch does not.
"""
_MIN_LATE_STORAGES = 4
"""Minimum storages of something that began late, at the only snapshot that saw it. Heuristic: at 2 a single copy of a
layer counts as growth, at 8 few validations far apart do not.
"""
_MIN_STEPS_OF_HALF = 8
"""Steps over which the counters must rise for each half of what that snapshot did not see. At 4 an optimizer created
late is such growth, at 16 a leak in a run of 40 steps is not.
"""
_MIN_SHARE_OF_RISE = 0.25
"""Minimum share that it has of the counters' rise before that snapshot. At 0.1 a single allocation counts as another's
growth, at 0.5 the tensors of a graph are not found beside its nodes.
"""
_MIN_MISSED_ITEMS = 2
"""Items that must have failed to appear by the end for a stop. At 1 what comes every 20 steps stops in any 20 steps
that end just before the next; at 4 a list that was full for three steps does not.
"""


def candidates_of(rank: Rank, snapshots: Sequence[HeapSnapshot]) -> list[Candidate]:
    """Groups that grow over some snapshots of a rank, and garbage that comes back."""
    return candidates_among(rank, groups_over(snapshots))


def candidates_among(rank: Rank, groups: GroupsOverSnapshots) -> list[Candidate]:
    """Groups that grow, among all groups of the snapshots."""
    at_the_end = _at_the_end(rank, groups)
    live = [key for key, at in groups.at.items() if not at[max(at)][1].freed]
    growing = [groups.lines[key] for key in live if groups.lines[key].grows]
    candidates = (_candidate(rank, groups, key, at_the_end, growing) for key in groups.at)
    return [candidate for candidate in candidates if candidate is not None]


def _candidate(
    rank: Rank,
    groups: GroupsOverSnapshots,
    key: ReferenceKey,
    end: tuple[int, Mapping[ReferenceKey, int]],
    growing: Sequence[Series],
) -> Candidate | None:
    """One group as a candidate; None if it does not grow."""
    at, line = groups.at[key], groups.lines[key]
    (end_step, at_the_end), last = end, groups.steps[-1]
    at, collected = _as_collected(rank, line, at)
    representative = _representative_step(at)
    snapshot, group = at[representative]
    began_late = by_program(group) and not line.grows
    longer = _to_the_end(rank, line, end_step, at_the_end.get(key, 0)) if began_late else None
    if began_late and longer is None:
        longer = _by_counters(rank, line, len(group.storages))
    rate, recreated = _rate(rank, longer or line, group, groups.garbage)
    if snapshot.occasion == Occasion.BLOCK:  # a snapshot after a block of code: whatever is unreachable was left by it
        rate = float(group.bytes) if group.freed else 0.0
    elif longer is None and by_program(group):
        missed = _would_have_grown(line, group, end_step - last)
        if not line.grows or (missed and at_the_end.get(key) == line.bytes[-1]):
            return None
    if rate <= 0:
        return None
    more = at_the_end.get(key, 0) - line.bytes[-1]
    grew_to_end = longer is not None or more >= _MIN_COUNTER_RATE * rate * (end_step - last) > 0
    rested = (
        key in at_the_end
        and _would_have_grown(line, group, end_step - last)
        and more < CONTINUED * rate * (end_step - last)
    )
    live = group.freed == REACHABLE and snapshot.occasion != Occasion.BLOCK
    doubtful = live and not grew_to_end and _is_counted(snapshot, group)
    later = course(rank, line, rate, growing, rested) if doubtful else CounterEvidence.CONTINUED
    stopped = later == CounterEvidence.STOPPED or (rested and later == CounterEvidence.SLOWER)
    plateaued = doubtful and (stopped or _by_chance(rank, line, rate, at))
    places = gaining(at) if live and snapshot is at[max(at)][0] else []
    candidate = Candidate(
        rank=rank.number,
        step=snapshot.step,
        graph=snapshot.heap,
        group=group,
        series=line,
        per_step=rate,
        recreated=recreated,
        storages_at={there.step: other.storages for there, other in at.values()},
        roots=tuple(at[there][1].roots for there in sorted(at)),
        made_at=made_at((there.heap, other.storages) for there, other in at.values()),
        grew_to_end=grew_to_end,
        may_have_stopped=(live and _has_stopped(rank, line, rate) and _is_counted(snapshot, group))
        or (later == CounterEvidence.SLOWER and not plateaued),
        plateaued=plateaued,
        follows=follows_input(rank, line, [len(other.storages) for _, other in at.values()]) if live else None,
        gaining=places[-1] if places else -1,
        snapshot=representative,
        collected=collected,
        above_gains=len(places) > 1,
        bound=bound_on(at, places),
    )
    return replace(candidate, too_large=too_large(candidate, rank))


def _as_collected(
    rank: Rank, line: Series, at: Mapping[int, tuple[HeapSnapshot, StorageGroup]]
) -> tuple[Mapping[int, tuple[HeapSnapshot, StorageGroup]], int]:
    """(The group at each snapshot, corrected by the real collection; full collections that freed what seemed alive).

    Liveness from reference counts is a prediction: a collection that freed the storages, or did not, decides.
    """
    last = max(at)
    snapshot, group = at[last]
    diff, freed = rank.gc_diff, group.freed
    collected = 0
    if diff is not None and diff.after == snapshot.occasion and snapshot.step == _last_step(rank, diff.after):
        was_freed = np.isin(np.asarray(group.storages), np.asarray(diff.freed_storages))
        share = int(snapshot.heap.bytes[np.asarray(group.storages)[was_freed]].sum()) / max(group.bytes, 1)
        if freed > 0 and share <= 1 - _MIN_COLLECTED_SHARE:
            freed = IMMORTAL
        elif freed == IMMORTAL and share >= _MIN_COLLECTED_SHARE:
            freed = max(diff.collections, 1)
        elif freed == 0 and share >= _MIN_COLLECTED_SHARE:
            collected = max(diff.collections, 1)
    elif freed > 0 and _outlived(rank, line, freed):
        freed = IMMORTAL
    if freed == group.freed:
        return at, collected
    return {step: (there, replace(seen, freed=freed)) for step, (there, seen) in at.items()}, collected


def _last_step(rank: Rank, occasion: Occasion) -> int:
    return max((snapshot.step for snapshot in rank.heap_snapshots if snapshot.occasion == occasion), default=-1)


def _outlived(rank: Rank, line: Series, collections: int) -> bool:
    """Whether as many full collections of the program as such garbage needs ran between two snapshots, freed far less
    than there was, and left all of it.
    """
    snapshots = zip(line.steps, line.bytes, strict=True)
    for (before, had), (after, held) in pairwise(snapshots):
        between = [c for _, c in _collections(rank, before, after)]
        full = sum(c.is_full for c in between)
        freed = [c.freed_bytes for c in between if c.freed_bytes is not None]
        known = len(freed) == len(between)
        if had and held >= had and full >= collections and known and sum(freed) <= (1 - _MIN_COLLECTED_SHARE) * had:
            return True
    return False


def made_at(seen: Iterable[tuple[HeapGraph, Sequence[int]]]) -> dict[str, int]:
    """Bytes of storages by allocation site, for those whose allocation was recorded."""
    made: dict[str, int] = defaultdict(int)
    for graph, storages in seen:
        for storage in storages:
            if storage in graph.made_at:
                made[graph.made_at[storage]] += int(graph.bytes[storage])
    return dict(made)


def _by_chance(rank: Rank, line: Series, rate: float, at: Mapping[int, tuple[HeapSnapshot, StorageGroup]]) -> bool:
    """Whether only three snapshots saw equally many storages become larger while the counters of all steps saw almost
    nothing.

    Varying sizes, of images or sentences, rise twice in a row one time in six.
    """
    counts = {len(group.storages) for _, group in at.values()}
    if len(line.steps) > MIN_SNAPSHOTS or len(counts) > 1:
        return False
    counted = counted_rate(rank, line.steps[0] - 1)
    return counted is not None and counted < _MIN_COUNTER_RATE * rate


def _to_the_end(rank: Rank, line: Series, ended: int, size: int) -> Series | None:
    """The series extended by the end of the main code, if it then grows and the counters confirm it. For growth that
    began late, which too few snapshots saw. None if not, or if there are too few snapshots.
    """
    if len(line.steps) < MIN_SNAPSHOTS or line.total <= 0 or line.steps[-1] >= ended or size <= line.bytes[-1]:
        return None
    counted = {step.number: step.counted_bytes or 0 for step in counted_steps(rank)}
    more = size - line.bytes[-1]
    before, after = counted.get(line.steps[-1]), counted.get(max(counted, default=0))
    if before is None or after is None or after - before < _MIN_COUNTER_RATE * more:
        return None
    longer = Series((*line.steps, ended), (*line.bytes, size))
    return longer if longer.grew_lately else None


def _by_counters(rank: Rank, line: Series, items: int) -> Series | None:
    """The series extended by the last step, if only the last snapshot saw it grow, by many items, and the
    counters rose as fast in each half of the steps before and after. None if not.

    Snapshots of short steps are a hundred steps apart: what each validation keeps may be seen by only one of them, and
    is released with its function before the main code returns.
    """
    rises = [b > a for a, b in pairwise(line.bytes)]
    counted = {step.number: step.counted_bytes or 0 for step in counted_steps(rank)}
    if len(line.steps) < MIN_SNAPSHOTS or rises[-1:] != [True] or any(rises[:-1]) or items < _MIN_LATE_STORAGES:
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
    if any(steps < _MIN_STEPS_OF_HALF or size < _MIN_COUNTER_RATE * rate * steps for size, steps in rose):
        return None
    seen = rose[0][0] + rose[1][0]
    if more < _MIN_SHARE_OF_RISE * seen:
        return None
    return Series((*line.steps, end), (*line.bytes, line.bytes[-1] + round(rate * (end - last))))


def _would_have_grown(line: Series, group: StorageGroup, steps: int) -> bool:
    """Whether some more items would have come in this many steps: what comes every 20 steps may pause for 19."""
    rises = [b - a for a, b in pairwise(line.bytes) if b > a]
    item = min([*rises, group.bytes / max(len(group.storages), 1)])
    return line.per_step * steps >= _MIN_MISSED_ITEMS * item


def _has_stopped(rank: Rank, line: Series, rate: float) -> bool:
    """Whether it grew at each snapshot and, by the counters, at each step, but not at the last snapshot."""
    if not line.pause_at_end or len(line.steps) < MIN_SNAPSHOTS:
        return False
    rested = line.steps[-1] - line.pause_at_end
    return not Series(line.steps[:-1], line.bytes[:-1]).has_pauses and rose_each_step(rank, line.steps[0], rested, rate)


def _at_the_end(rank: Rank, groups: GroupsOverSnapshots) -> tuple[int, dict[ReferenceKey, int]]:
    """The step at which the main code returned, and each live group's bytes then; empty soon after the last snapshot.

    Used only to discard groups that stopped growing and to confirm others. A group seen only here is not reported.
    """
    end = next((snapshot for snapshot in rank.heap_snapshots if snapshot.occasion == Occasion.END), None)
    if end is None or not groups.steps or end.step < groups.steps[-1] + _MIN_STEPS_WITHOUT_GROWTH:
        return 0, {}
    return end.step, {group.key: group.bytes for group in groups.of(end.heap) if by_program(group)}


def _is_counted(snapshot: HeapSnapshot, group: StorageGroup) -> bool:
    """Whether the counted bytes are of the memory that the group is in."""
    return (snapshot.counted_on != "cpu") == any(s in snapshot.heap.device for s in group.storages)


def _representative_step(at: Mapping[int, tuple[HeapSnapshot, StorageGroup]]) -> int:
    """The last snapshot, unless gc had just emptied the group: then the one with most of it."""
    most = max(at, key=lambda step: (at[step][1].bytes, step))
    last = max(at)
    return last if at[last][1].bytes * 2 >= at[most][1].bytes else most


def _rate(rank: Rank, line: Series, group: StorageGroup, garbage: Mapping[int, int]) -> tuple[float, bool]:
    """Bytes per step, and whether garbage came back after the program's own gc had freed some.

    What the program's collections freed between two snapshots is added to the growth, in proportion to the group's
    share of the garbage: automatic gc hides a cyclic leak in one run and not in the next.
    """
    if by_program(group):
        return line.per_step, False
    stretches: list[tuple[float, int]] = []
    """Bytes per step between two snapshots, and the number of steps."""
    recreated = False
    snapshots = list(zip(line.steps, line.bytes, strict=True))
    for (before, had), (after, held) in pairwise(snapshots):
        share = held / garbage[after] if garbage[after] else 0.0
        freed = sum(c.freed_bytes or 0 for _, c in _collections(rank, before, after))
        full = [step for step, c in _collections(rank, before, after) if c.is_full]
        if held == had and freed and not full:
            continue  # older garbage; or equal amounts came and went
        come = max(held - had + share * freed, 0.0) / (after - before) if full or held != had else 0.0
        if full and held:
            recreated = True
            if not freed:  # releases were not counted; everything here has come since
                come = max(come, held / max(after - full[-1], 1))
        stretches.append((come, after - before))
    risen = [come for come, _ in stretches if come > 0]
    if len(risen) < 2 and not recreated:  # noqa: PLR2004 - it came once
        return 0.0, False
    if len(risen) == len(stretches):
        return float(median(risen)), recreated
    return sum(come * steps for come, steps in stretches) / sum(steps for _, steps in stretches), recreated


def _collections(rank: Rank, before: int, after: int) -> list[tuple[int, GcCollection]]:
    """(step, collection) of those that the program ran after one step and up to another."""
    return [(step.number, c) for step in rank.steps if before < step.number <= after for c in step.collections]
