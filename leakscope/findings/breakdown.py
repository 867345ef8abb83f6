"""The growth breakdown: attributes what was counted at each snapshot; the rest is unattributed."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from leakscope.findings.build import judge_candidate
from leakscope.findings.candidates import Candidate, continued
from leakscope.findings.counters import counted_rate, rises_steadily
from leakscope.findings.facts import (
    Bounded,
    EmptiedLater,
    FollowsInput,
    FreedBy,
    Origin,
    Plateaued,
    RuleName,
    Severity,
)
from leakscope.findings.grouping import GroupsOverSnapshots, ReferenceKey, StorageGroup, by_program
from leakscope.findings.growth import MIN_SNAPSHOTS, Series, series
from leakscope.findings.library import RetentionFacts
from leakscope.findings.model import (
    Finding,
    LedgerInterval,
    Line,
    LineKind,
    RestedKind,
    Sighting,
    merged_lines,
)
from leakscope.findings.naming import fingerprint
from leakscope.findings.nontensor import (
    counted_objects_of,
)
from leakscope.findings.oom import device_snapshots
from leakscope.findings.rules.native_hold import UnattributedFacts
from leakscope.findings.rules.step_growth import ScatteredFacts
from leakscope.findings.thresholds import Thresholds
from leakscope.graph.model import IMMORTAL, KINDS, REACHABLE, HeapGraph, ObjectKind
from leakscope.run.model import HeapSnapshot, Rank

_ARRAY, _NODE = KINDS.index(ObjectKind.ARRAY), KINDS.index(ObjectKind.GRAD_NODE)
OF_A_NODE = (64, 1024)
"""Range of bytes that a grad node takes besides tensors: 380 (linear, convolution) to 600 (a chain of ReLU) were
counted.
"""
_USUAL_NODE = 400
"""Default bytes per node if the snapshots do not show it."""


@dataclass(frozen=True)
class SnapshotMemory:
    """The memory of one rank at one heap snapshot, on the counted kind of device."""

    step: int
    counted: int | None
    counted_on: str
    storages: int
    """Bytes of storages, reachable or not."""
    objects: int = 0
    """Bytes of live arrays and the like, and of other gained objects; in host memory."""
    dead_objects: int = 0
    """Bytes of those that await gc."""
    nodes: int = 0
    """Number of grad nodes, whose memory is on the host."""
    of_a_node: int = _USUAL_NODE
    """Bytes of each of them."""
    blocks: int = 0
    """Bytes of an accelerator's blocks without a storage, and by which other blocks exceed theirs."""

    @property
    def known(self) -> int:
        """Return the attributed bytes."""
        return self.storages + self.objects + self.dead_objects + self.blocks

    @property
    def gap(self) -> int | None:
        """Return the counted bytes outside storages, arrays and blocks: grad nodes and unattributed memory; None if
        nothing counts.
        """
        return None if self.counted is None else self.counted - self.known


def snapshot_memories(rank: Rank, snapshots: Sequence[HeapSnapshot], warmup: int) -> tuple[SnapshotMemory, ...]:
    """The memory at each snapshot."""
    beside: dict[tuple[int, str, str], int] = {}
    for found in device_snapshots(rank):
        place = (found.step, found.occasion, found.kind)
        beside[place] = beside.get(place, 0) + found.held + found.waiting + found.native
    memories = [
        _snapshot_memory(snapshot, beside.get((snapshot.step, snapshot.occasion, snapshot.counted_on)))
        for snapshot in snapshots
    ]
    each = _bytes_a_node(memories, counted_rate(rank, warmup))
    return tuple(replace(memory, of_a_node=each) for memory in memories)


def storage_bytes(snapshot: HeapSnapshot, storages: Sequence[int]) -> int:
    """Bytes of storages on the counted kind of device."""
    graph = snapshot.heap
    return sum(int(graph.bytes[s]) for s in storages if (s in graph.device) == (snapshot.counted_on != "cpu"))


def _snapshot_memory(snapshot: HeapSnapshot, in_blocks: int | None) -> SnapshotMemory:
    graph, host = snapshot.heap, snapshot.counted_on == "cpu"
    arrays, reachable = graph.kind == _ARRAY, graph.freed == REACHABLE
    storages = storage_bytes(snapshot, graph.storages.tolist()) if len(graph.storages) else snapshot.explained_bytes
    return SnapshotMemory(
        step=snapshot.step,
        counted=snapshot.counted_bytes,
        counted_on=snapshot.counted_on,
        storages=storages,
        objects=int(graph.size[arrays & reachable].sum()) + counted_objects_of(snapshot) if host else 0,
        dead_objects=int(graph.size[arrays & ~reachable].sum()) if host else 0,
        nodes=int((graph.kind == _NODE).sum()) if host else 0,
        blocks=0 if host or in_blocks is None else in_blocks - storages,
    )


def bytes_a_node(memories: Sequence[SnapshotMemory]) -> int:
    """Bytes of a grad node."""
    return memories[-1].of_a_node if memories else _USUAL_NODE


def _bytes_a_node(memories: Sequence[SnapshotMemory], rate: float | None) -> int:
    """Bytes of a grad node, from the growth of unattributed memory with the number of nodes; the default if that is not
    conclusive.

    The counters of all steps, which counted `rate` bytes a step, are preferred to those at snapshots: a snapshot itself
    takes memory for a while.
    """
    counted = [b for b in memories if b.gap is not None]
    if len(counted) < 2 or counted[-1].nodes <= counted[0].nodes:  # noqa: PLR2004 - from the first to the last
        return _USUAL_NODE
    first, last = counted[0], counted[-1]
    came, steps = last.nodes - first.nodes, max(last.step - first.step, 1)
    by_snapshots = ((last.gap or 0) - (first.gap or 0)) / came
    by_steps = 0.0 if rate is None else (rate * steps - (last.known - first.known)) / came
    low, high = OF_A_NODE
    return round(next((each for each in (by_steps, by_snapshots) if low <= each <= high), _USUAL_NODE))


Levels = Mapping[int, int]
"""Index of a snapshot, mapped to bytes."""
Became = tuple[Candidate, str]
"""A candidate, and the fingerprint of the finding that includes it."""


@dataclass(frozen=True)
class GroupLevels:
    """Bytes of one group at the snapshots that contain it, and the findings that may be about it."""

    became: tuple[tuple[str, tuple[int, ...]], ...]
    """For each of its candidates: the fingerprint of the finding, and the storages."""
    kept_by: frozenset[str]
    """Fingerprints of the findings that name most of its last storages."""
    levels: Mapping[int, Line]
    """Index of a snapshot, mapped to the group's bytes, with the line of the breakdown for them if no finding is about
    it.
    """


@dataclass(frozen=True)
class BreakdownParts:
    """The memory of one rank at its judged snapshots, as far as it is known before all findings are."""

    memories: tuple[SnapshotMemory, ...] = ()
    """One for each snapshot."""
    groups: tuple[GroupLevels, ...] = ()
    """Groups that a finding may be about."""
    others: tuple[tuple[Line, ...], ...] = ()
    """For each snapshot the bytes of all other groups."""
    beside: tuple[int, ...] = ()
    """For each snapshot the bytes of storages in no group."""
    objects: tuple[tuple[str, Levels], ...] = ()
    """Non-tensor memory: fingerprint of its finding, and bytes."""


@dataclass(frozen=True)
class LinesOfFindings:
    """The lines of the breakdown that findings give to its parts."""

    of_groups: Sequence[Line | None]
    """One for each group of `BreakdownParts`; None if no finding is about it."""
    of_objects: Sequence[Line | None]
    graphs: Line | None = None
    """The finding that keeps grad nodes, if there is one."""
    unknown: Line | None = None
    """A leak with an unknown holder, if there is one: all unattributed memory belongs to it."""
    scattered: Line | None = None
    """The finding of growth under ever new names, if there is one."""


def breakdown_parts(
    snapshots: Sequence[HeapSnapshot],
    memories: tuple[SnapshotMemory, ...],
    groups: GroupsOverSnapshots,
    became: Sequence[Became],
    arrays: Sequence[Became],
    storages: Mapping[str, Collection[int]],
) -> BreakdownParts:
    """The parts of the breakdown of one rank.

    Args:
        snapshots: The judged snapshots.
        memories: One for each snapshot.
        groups: Groups of the storages in these snapshots.
        became: The candidates among the groups.
        arrays: Candidates of non-tensor memory.
        storages: Fingerprint of each finding of the rank, mapped to its storages in the last snapshot.

    """
    others: list[Counter[Line]] = [Counter() for _ in snapshots]
    beside = [memory.storages for memory in memories]
    group_levels = []
    became_of: dict[ReferenceKey, list[tuple[str, tuple[int, ...]]]] = {}
    for candidate, its in became:
        became_of.setdefault(candidate.group.key, []).append((its, candidate.group.storages))
    named = {its: frozenset(those) for its, those in storages.items() if those}
    place_of = {step: place for place, step in enumerate(groups.steps)}
    for key, at in groups.at.items():
        levels = {place_of[step]: _level(snapshot, group) for step, (snapshot, group) in at.items()}
        for place, line in levels.items():
            beside[place] -= line.bytes
        kept_by = _kept_by(*at[groups.steps[-1]], named) if groups.steps[-1] in at else frozenset()
        if key in became_of or kept_by:
            group_levels.append(GroupLevels(tuple(became_of.get(key, ())), kept_by, levels))
        else:
            for place, line in levels.items():
                others[place][replace(line, bytes=0)] += line.bytes
    of_others = tuple(tuple(replace(line, bytes=size) for line, size in at.items()) for at in others)
    objects = tuple((name, dict(enumerate(array.counted or array.series.bytes))) for array, name in arrays)
    return BreakdownParts(memories, tuple(group_levels), of_others, tuple(beside), objects)


def _kept_by(snapshot: HeapSnapshot, group: StorageGroup, named: Mapping[str, Collection[int]]) -> frozenset[str]:
    """The findings that name more than half of a group."""
    sizes = {storage: int(snapshot.heap.bytes[storage]) for storage in group.storages} if named else {}
    return frozenset(
        fingerprint
        for fingerprint, storages in named.items()
        if 2 * sum(size for storage, size in sizes.items() if storage in storages) > group.bytes
    )


def _level(snapshot: HeapSnapshot, group: StorageGroup) -> Line:
    """Garbage waits for gc; what is alive, or uncollectable, did not go on growing."""
    size = storage_bytes(snapshot, group.storages)
    if group.freed not in (REACHABLE, IMMORTAL):
        return Line(LineKind.GARBAGE, size)
    return Line(LineKind.RESTED, size, rested=_rested(snapshot.heap, group))


def _rested(graph: HeapGraph, group: StorageGroup) -> RestedKind:
    objects = (group.start, *(int(graph.held[reference]) for reference in group.path))
    kinds = {graph.object(index).kind for index in objects}
    if ObjectKind.OPTIMIZER in kinds:
        return RestedKind.OPTIMIZER
    return RestedKind.PARAMETER if ObjectKind.PARAMETER in kinds else RestedKind.OTHER


def breakdown_of(parts: BreakdownParts, lines_of: LinesOfFindings) -> tuple[LedgerInterval, ...]:
    """The intervals between consecutive snapshots on one kind of device; the lines of each add up to
    what was counted.
    """
    each = bytes_a_node(parts.memories)
    node, block, left_over = (
        _of_unknown(kind, lines_of.unknown) for kind in (LineKind.GRAD_NODES, LineKind.BLOCKS, LineKind.UNATTRIBUTED)
    )
    node = lines_of.graphs or node
    levels = []
    for place, memory in enumerate(parts.memories):
        lines = [*_storages(place, parts, lines_of), *_objects(place, parts, lines_of)]
        lines.append(replace(block, bytes=memory.blocks))
        if memory.gap is not None:
            lines.append(replace(node, bytes=memory.nodes * each))
            left = (memory.counted or 0) - sum(line.bytes for line in lines)
            lines.append(replace(left_over, bytes=left))
        levels.append(lines)
    return tuple(
        _interval(a, b, before, after)
        for (a, before), (b, after) in pairwise(zip(parts.memories, levels, strict=True))
        if a.counted_on == b.counted_on
    )


def _of_unknown(kind: LineKind, unknown: Line | None) -> Line:
    """A line for memory without a holder: part of the leak if there is one, or suppressed if that is known."""
    if unknown is None:
        return Line(kind, 0)
    return unknown if unknown.kind == LineKind.APART else Line(kind, 0, unknown.fingerprint)


def _interval(a: SnapshotMemory, b: SnapshotMemory, before: Sequence[Line], after: Sequence[Line]) -> LedgerInterval:
    if a.counted is None or b.counted is None:
        unknown = (LineKind.GRAD_NODES, LineKind.UNATTRIBUTED)
        before, after = ([line for line in lines if line.kind not in unknown] for lines in (before, after))
        counted = None
    else:
        counted = b.counted - a.counted
    moved = merged_lines((*after, *(replace(line, bytes=-line.bytes) for line in before)))
    return LedgerInterval(a.step, b.step, counted, moved, b.counted_on)


def _storages(place: int, parts: BreakdownParts, lines_of: LinesOfFindings) -> Iterator[Line]:
    for group, line in zip(parts.groups, lines_of.of_groups, strict=True):
        if place in group.levels:
            level = group.levels[place]
            yield _of_no_finding(level, lines_of.scattered) if line is None else replace(line, bytes=level.bytes)
    for level in parts.others[place]:
        yield _of_no_finding(level, lines_of.scattered)
    yield Line(LineKind.RESTED, parts.beside[place], rested=RestedKind.OTHER)


def _of_no_finding(level: Line, scattered: Line | None) -> Line:
    return level if scattered is None or level.kind == LineKind.GARBAGE else replace(scattered, bytes=level.bytes)


def _objects(place: int, parts: BreakdownParts, lines_of: LinesOfFindings) -> Iterator[Line]:
    memory = parts.memories[place]
    left = memory.objects
    for (_, levels), line in zip(parts.objects, lines_of.of_objects, strict=True):
        if line is not None:
            size = levels.get(place, 0)
            left -= size
            yield replace(line, bytes=size)
    yield Line(LineKind.OBJECTS, left)
    yield Line(LineKind.GARBAGE, memory.dead_objects)


SCATTERED = fingerprint(("step-growth", "scattered"))
"""Fingerprint of growth in which each snapshot has new names."""


def scattered_findings(
    rank: Rank, groups: GroupsOverSnapshots, candidates: Sequence[Candidate], warmup: int, thresholds: Thresholds
) -> list[Finding]:
    """A finding if groups that do not grow individually grow together at every snapshot, up to the last."""
    judged = {candidate.group.key for candidate in candidates}
    others = {key: at[max(at)][1] for key, at in groups.at.items() if key not in judged}
    still = [key for key, group in others.items() if by_program(group)]
    line = series(groups.steps, {s: sum(_bytes(groups, key, s) for key in still) for s in groups.steps})
    min_per_step = thresholds.for_counters
    if len(line.steps) <= MIN_SNAPSHOTS or not line.steady or line.has_pauses or not line.is_leak(min_per_step):
        return []
    counted = counted_rate(rank, warmup)
    if (counted is not None and counted < min_per_step) or not continued(rank, line, line.per_step):
        return []
    came = [key for key in still if not _bytes(groups, key, groups.steps[0])]
    newest = _newest(groups, came)
    if newest is None:
        return []
    return [_finding(rank, groups, line, newest, len(came), thresholds)]


def _bytes(groups: GroupsOverSnapshots, key: ReferenceKey, step: int) -> int:
    there = groups.at[key].get(step)
    return 0 if there is None else there[1].bytes


def _newest(groups: GroupsOverSnapshots, came: Sequence[ReferenceKey]) -> ReferenceKey | None:
    """The largest group that came last and is still there; None where none did."""
    last = groups.steps[-1]
    alive = [key for key in came if last in groups.at[key]]
    return max(alive, key=lambda key: (min(groups.at[key]), _bytes(groups, key, last), key), default=None)


def _finding(
    rank: Rank, groups: GroupsOverSnapshots, line: Series, newest: ReferenceKey, holders: int, thresholds: Thresholds
) -> Finding:
    snapshot, group = groups.at[newest][groups.steps[-1]]
    alone = Candidate(
        rank.number, snapshot.step, snapshot.heap, group, Series((snapshot.step,), (group.bytes,)), 0.0, False
    )
    one = judge_candidate(alone, thresholds)
    grown = line.bytes[-1] - line.bytes[0]
    return Finding(
        rule=RuleName.STEP_GROWTH,
        facts=ScatteredFacts(holders, one.cut.written if one.cut and one.cut.written else one.subject),
        fingerprint=SCATTERED,
        severity=Severity.LEAK,
        least_per_step=thresholds.for_counters,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=grown,
        bytes_per_step=line.per_step,
        trace=one.trace,
        cut=None,
        origin=one.origin,
        library=one.library,
        collections=one.collections or None,
        sightings=tuple(
            Sighting(rank.number, s, size - line.bytes[0]) for s, size in zip(line.steps, line.bytes, strict=True)
        ),
        cycle=one.cycle,
        host_bytes=one.host_bytes,
        subject=one.subject,
        comm_buffers=one.comm_buffers,
        cut_in=one.cut_in,
    )


GAP = fingerprint(("native-hold", "gap"))
"""Fingerprint of growth that no storage explains."""
OVERHEAD = 0.1
"""Factor for leaked tensors' grad nodes, dicts and frames, which the allocator counts and no storage explains.
Heuristic: at half of it, lists of small graphs show a gap; at twice, a leak of a C extension a fifth as fast as
another leak is missed.
"""

_MAX_A_SHAPE = 4 << 20
"""Maximum bytes that a new shape per step may cost: up to 2.8 MiB were measured, for a small convolutional net in
bfloat16. At half of it such a net is reported, at twice a leak of several MiB a step counts as a cache.
"""
_MOST_NEW = 0.25
"""Minimum share of steps with a new shape. Images of random sizes have nearly 1; of sentences of 60 lengths, drawn
evenly, (1 - 1/60)**60 or 0.37 of the steps are new after 60, and 0.13 after 120.
"""
CACHED_SHAPES = 1024
"""Shapes for which oneDNN and ideep cache kernels, unless ONEDNN_PRIMITIVE_CACHE_CAPACITY and LRU_CACHE_CAPACITY are
set (oneDNN, developer guide, "Primitive Cache"; ideep, lru_cache.hpp).
"""

_MAX_NAMED_CLASSES = 3
"""Classes named with memory without a holder; more would be a listing."""


def gap_findings(
    rank: Rank, snapshots: Sequence[HeapSnapshot], memories: Sequence[SnapshotMemory], warmup: int, min_per_step: int
) -> list[Finding]:
    """A native-hold finding if counted bytes outgrow attributed bytes, by the snapshots and by the steps' counters."""
    counted = [
        (snapshot, b)
        for snapshot, b in zip(snapshots, memories, strict=True)
        if b.counted_on == memories[-1].counted_on
    ]
    counted = [(snapshot, b) for snapshot, b in counted if b.gap is not None]
    known = {b.step: b.known for _, b in counted}
    gap = {b.step: max(b.gap or 0, 0) for _, b in counted}
    steps = _since_last_fall(sorted(gap), gap)
    line, explained = series(steps, gap), series(steps, known)
    if not line.grew_lately or line.total <= OVERHEAD * explained.total:
        return []
    rate = min(line.per_step, _by_counters(rank, warmup, explained))
    grown = line.bytes[-1] - line.bytes[0]
    if rate < min_per_step or grown < line.floor(min_per_step):
        return []
    # three counts, affected by the rest of the process, rise one time in six
    steady = (line.steady and len(line.steps) > MIN_SNAPSHOTS) or rises_steadily(rank, warmup)
    on_host = memories[-1].counted_on == "cpu"
    new = _new_shapes(rank, line.steps[0], line.steps[-1])
    many = _shapes_are_new([snapshot for snapshot, _ in counted]) if new is None else new >= _MOST_NEW
    shapes = on_host and line.per_step <= _MAX_A_SHAPE and many
    seen = sum(step.new_shapes for step in rank.steps)
    full = rank.steps[-1].number + math.ceil(max(CACHED_SHAPES - seen, 0) / new) if shapes and new else 0
    finding = Finding(
        rule=RuleName.NATIVE_HOLD,
        facts=UnattributedFacts(
            rate, grown, line.steady, shapes, on_host, seen, full, _came_too([snapshot for snapshot, _ in counted])
        ),
        fingerprint=GAP,
        # a compilation or the first use of a library rises once
        severity=Severity.LEAK if steady and not shapes and continued(rank, line, line.per_step) else Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=grown,
        bytes_per_step=rate,
        trace=(),
        cut=None,
        sightings=tuple(
            Sighting(rank.number, step, size - line.bytes[0]) for step, size in zip(line.steps, line.bytes, strict=True)
        ),
    )
    return [finding]


def _came_too(snapshots: Sequence[HeapSnapshot]) -> tuple[tuple[str, int], ...]:
    """Classes, except Python's own, with more instances at each snapshot, by at least one a step."""
    steps = max(snapshots[-1].step - snapshots[0].step, 1)
    own = (
        name for name in snapshots[-1].types if "." in name and name.partition(".")[0] not in sys.stdlib_module_names
    )
    counts = {name: [snapshot.types.get(name, 0) for snapshot in snapshots] for name in own}
    rates = {
        name: round((seen[-1] - seen[0]) / steps)
        for name, seen in counts.items()
        if all(before < after for before, after in pairwise(seen))
    }
    most = sorted((name for name, rate in rates.items() if rate), key=lambda name: (-rates[name], name))
    return tuple((name, rates[name]) for name in most[:_MAX_NAMED_CLASSES])


def _by_counters(rank: Rank, warmup: int, known: Series) -> float:
    """Bytes per step in the counters of all steps beyond attributed memory; infinite if they are not conclusive."""
    rate = counted_rate(rank, warmup)
    return inf if rate is None else rate - (known.bytes[-1] - known.bytes[0]) / max(known.steps[-1] - known.steps[0], 1)


def _since_last_fall(steps: list[int], gap: Mapping[int, int]) -> list[int]:
    """The snapshots after the gap last fell, if enough are left to judge.

    A single release, such as that of start-up memory or of a watched step, must not hide later growth.
    """
    falls = [place for place, (before, after) in enumerate(pairwise(steps), 1) if gap[after] < gap[before]]
    later = steps[falls[-1] :] if falls else steps
    return later if len(later) > MIN_SNAPSHOTS else steps


def _new_shapes(rank: Rank, first: int, last: int) -> float | None:
    """Share of the steps between two snapshots with a new shape of the model's input; None if it was not recorded."""
    steps = [step for step in rank.steps if first < step.number <= last]
    with_inputs = [step for step in steps if step.input_elements is not None]
    return sum(step.new_shapes > 0 for step in with_inputs) / len(with_inputs) if with_inputs else None


def _shapes_are_new(snapshots: Sequence[HeapSnapshot]) -> bool:
    """Whether each snapshot but the first has a tensor of a new type and shape."""
    known: set[str] = set()
    for place, snapshot in enumerate(snapshots):
        graph = snapshot.heap
        labels = {graph.strings[k] for k in graph.label[graph.is_kind(ObjectKind.TENSOR)].tolist()}
        if place and labels <= known:
            return False
        known |= labels
    return True


def breakdown_of_rank(findings: Sequence[Finding], rank: int, parts: BreakdownParts) -> tuple[LedgerInterval, ...]:
    """The growth breakdown of one rank, with each finding on the line of its memory."""
    mine = [finding for finding in findings if rank in finding.ranks]
    scattered = next((f for f in mine if f.fingerprint == SCATTERED), None)
    unknown = next((f for f in mine if f.fingerprint == GAP and f.severity == Severity.LEAK), None)
    graphs = next((f for f in mine if f.keeps_graphs and f.severity == Severity.LEAK), None)
    by_name = {finding.fingerprint: finding for finding in reversed(mine)}  # the first of each name
    lines = LinesOfFindings(
        of_groups=[_line(_found(group, rank, mine, by_name)) for group in parts.groups],
        of_objects=[_line(by_name.get(name)) for name, _ in parts.objects],
        graphs=_line(graphs),
        unknown=_line(unknown),
        scattered=_line(scattered),
    )
    return breakdown_of(parts, lines)


def _found(group: GroupLevels, rank: int, mine: Sequence[Finding], by_name: Mapping[str, Finding]) -> Finding | None:
    """The finding about a group: that of its candidate, else one of a library that keeps most of it."""
    for name, storages in reversed(group.became):
        if name in by_name:
            return by_name[name]
        # memory of open contexts has its own line
        contexts = (f for f in mine if f.rule == RuleName.DIST_AUTOGRAD_CONTEXT)
        same = next((f for f in contexts if set(storages) <= set(f.storages.get(rank, ()))), None)
        if same is not None:
            return same
    return next((f for f in mine if f.fingerprint in group.kept_by and isinstance(f.facts, RetentionFacts)), None)


def _line(finding: Finding | None) -> Line | None:
    """The line of a finding, without its bytes; None for none."""
    if finding is None:
        return None
    holder = finding.cut.written if finding.cut is not None and finding.cut.written else finding.subject
    line = Line(_kind(finding), 0, finding.fingerprint, holder)
    if line.kind == LineKind.RESTED:
        return Line(LineKind.RESTED, 0, rested=RestedKind.OTHER)
    return Line(LineKind.GARBAGE, 0) if line.kind == LineKind.GARBAGE else line


def _kind(finding: Finding) -> LineKind:
    if finding.suppressed_by is not None:
        return LineKind.APART
    if finding.origin == Origin.LIBRARY:
        return LineKind.LIBRARY
    if finding.severity == Severity.LEAK:
        return LineKind.LEAKS
    if isinstance(finding.settled_by, Plateaued):
        return LineKind.RESTED
    if isinstance(finding.settled_by, FollowsInput):
        return LineKind.FOLLOWS
    if isinstance(finding.settled_by, (Bounded, EmptiedLater)) or finding.facts.is_bounded:
        return LineKind.BOUND
    return LineKind.GARBAGE if finding.freed_by == FreedBy.GC else LineKind.SLOW
