"""Memory at the step's peak that is never used again: who holds it then, and what letting go of it saves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.findings.comm.operations import crossed_count
from leakscope.findings.cut.trace import on_trace
from leakscope.findings.facts import Facts
from leakscope.findings.kinds import FreedBy, Severity
from leakscope.findings.model import Cut, CutReference, Finding, Sighting, Unjudged
from leakscope.findings.naming.trace import fingerprint, generic
from leakscope.findings.peak.idle import Idle, PeakOfStep, Releaser, arguments_cut, frees_mostly_idle, peak_of
from leakscope.findings.peak.library_drag import NAME, others_findings
from leakscope.findings.peak.naming import NAMES_SHOWN, line_above, spoken_as, together, trace_through, variables
from leakscope.graph.model import HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.paths import ShortestPaths, paths_from_roots
from leakscope.graph.reach import reachable
from leakscope.graph.retained import freed_storages
from leakscope.record.kinds import Phase
from leakscope.record.model import Rank
from leakscope.record.rows.lifetimes import LifetimesUnjudged

WORTH_SHARE = 0.01
"""Share of the step's peak by which it must fall for a line to be worth reading, chosen: a variable that lives on is
in every plain script. At least `min_bytes` too.
"""
_CONTAINERS = (ObjectKind.CONTAINER,)


@dataclass(frozen=True, kw_only=True)
class LateReleaseFacts(Facts):
    """Memory at the step's peak that nothing uses again and that the user's code could let go."""

    bytes: int
    holders: int
    """How many references of the user's keep it, all in the cut."""
    made_at: str
    """The line that made the largest of it, "" where it is from before the watched steps."""
    last_use_at: str
    """The line that used that last, "" where nothing but its making did."""
    peak_at: str
    fall_bytes: int
    """By how much the step's peak would fall."""
    variables: tuple[str, ...]
    """The holders' names where each is a variable of a function or the script, for `del`; else ()."""
    arguments: tuple[str, ...]
    """Those of the holders that are arguments of a running call."""
    is_saved: bool
    """A grad node that has run still keeps it too."""
    of_backward: bool = False
    """Sent or received buffers are among it, or it is what a call was given and the peak is in backward."""


def late_release_findings(
    rank: Rank, min_bytes: int, reported: Collection[str] = (), worth_share: float = WORTH_SHARE
) -> list[Finding]:
    """What somebody could save of this rank's peak, where that is worth a line: never a leak.

    `reported` are holders of a library that have findings of their own, as `PipelineStage.output_chunks`.
    """
    peak = peak_of(rank)
    if peak is None:
        return []
    least = max(min_bytes, worth_share * peak.step.peak_bytes, 1)
    return _users_findings(peak, least) + others_findings(peak, min_bytes, least, reported)


def late_release_unjudged(rank: Rank) -> list[Unjudged]:
    """Why this rank's lifetimes could not be told, where they could not."""
    return [Unjudged(NAME, rank.number, row.why) for row in rank.lifetimes if isinstance(row, LifetimesUnjudged)]


def avoidable_peak_bytes(rank: Rank) -> int | None:
    """Bytes of the watched step's peak that the user's code could have let go; None where no step was watched."""
    peak = peak_of(rank)
    return None if peak is None else peak.avoidable_bytes


def _users_findings(peak: PeakOfStep, least: float) -> list[Finding]:
    graph = peak.graph
    paths = paths_from_roots(graph)
    idle = peak.held_by(Releaser.USER)
    storages = frozenset(i.row.storage for i in idle)
    groups: dict[str, list[tuple[Idle, tuple[int, ...]]]] = defaultdict(list)
    climbed: dict[int, int] = {}
    for entry in idle:
        cuts = []
        for reference in entry.holders.users:
            if reference not in climbed:
                climbed[reference] = _climb(graph, reference, storages)
            cuts.append(climbed[reference])
        cuts = _by_their_object(graph, list(dict.fromkeys(cuts)), entry, storages)
        cuts.sort(key=lambda c: (graph.object(int(graph.holder[c])).kind != ObjectKind.FRAME, c))
        groups[_owner(graph, paths, cuts[0])].append((entry, tuple(cuts)))
    # Where another moment is as high, letting go of these alone would gain nothing worth a line.
    worth = [members for members in groups.values() if peak.fall([idle for idle, _ in members]) >= least]
    return [_finding(peak, paths, members) for members in worth]


def _climb(graph: HeapGraph, reference: int, idle: frozenset[int]) -> int:
    """From an item of a container to the local that holds the container, where cutting that frees nothing that is
    needed.
    """
    best = reference
    for _ in range(3):
        holder = int(graph.holder[best])
        into = graph.into(holder).tolist()
        if graph.object(holder).kind not in _CONTAINERS or len(into) != 1 or graph.root[holder]:
            break
        below = reachable(len(graph), graph.holder, graph.held, np.asarray([holder], dtype=np.int64))[graph.storages]
        gone = freed_storages(graph, np.asarray(into, dtype=np.int64)).tolist()
        if not idle.issuperset(graph.storages[below].tolist()) and (not gone or not idle.issuperset(gone)):
            break
        best = into[0]
    return best if graph.reference(best).kind == ReferenceKind.LOCAL else reference


def _by_their_object(graph: HeapGraph, cuts: list[int], entry: Idle, idle: frozenset[int]) -> list[int]:
    """Where one object holds the storage by several references, the one reference to that object instead of these."""
    times = Counter(int(graph.holder[c]) for c in cuts)
    for holder in [h for h, count in times.items() if count > 1 and not graph.root[h] and len(graph.into(h)) == 1]:
        instead = [*graph.into(holder).tolist(), *(c for c in cuts if graph.holder[c] != holder)]
        gone = freed_storages(graph, np.asarray([*instead, *entry.holders.packed], dtype=np.int64))
        if frees_mostly_idle(graph, gone, entry.row.storage, idle):
            cuts = list(dict.fromkeys(instead))
    return cuts


def _owner(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """What a person would open to mend it: the function or module whose variable it is, or the root above it."""
    holder = int(graph.holder[reference])
    start = paths.start_of(graph, holder)
    root = graph.object(start)
    own = root.kind == ObjectKind.FRAME or start == holder
    return f"{root.kind} {root.name}" if own else f"{root.kind} {root.name} {spoken_as(graph, paths, reference)}"


def _finding(
    peak: PeakOfStep, paths: ShortestPaths, members: Sequence[tuple[Idle, tuple[int, ...]]]
) -> Finding:  # fmt: skip
    """All that one holder keeps."""
    graph = peak.graph
    size = sum(member.row.bytes for member, _ in members)
    fall = peak.fall([idle for idle, _ in members])
    members = sorted(members, key=lambda m: -m[0].row.bytes)
    cuts = list(dict.fromkeys(c for _, more in members for c in more))
    spoken = list(dict.fromkeys(spoken_as(graph, paths, c) for c in cuts))
    where = line_above(graph, paths, cuts[0])
    packed = {r for member, _ in members for r in member.holders.packed}
    gone = freed_storages(graph, np.asarray([*cuts, *packed], dtype=np.int64))
    frees = int(graph.bytes[[s for s in gone.tolist() if s in {m[0].row.storage for m in members}]].sum())
    names = together(spoken)
    made = list(dict.fromkeys(member.row.made_at for member, _ in members if member.row.made_at))
    trace = trace_through(
        graph,
        paths,
        cuts[0],
        members[0][0].row.storage,
        frees if len(cuts) == 1 else _frees_alone(graph, members, cuts[0]),
    )
    named = CutReference(
        ", ".join(dict.fromkeys(generic(graph.reference(c).name) for c in cuts[:NAMES_SHOWN])),
        where,
        names,
        tuple(cuts),
    )
    cut = Cut((named,), frees)
    arguments = arguments_cut(graph, peak.step, cuts)
    return Finding(
        rule=NAME,
        facts=LateReleaseFacts(
            bytes=size,
            holders=len(spoken),
            made_at=members[0][0].row.made_at,
            last_use_at=members[0][0].row.last_use_at,
            peak_at=peak.step.peak_at,
            fall_bytes=fall,
            variables=variables(graph, cuts),
            arguments=tuple(arguments),
            is_saved=any(idle.holders.saved for idle, _ in members),
            of_backward=crossed_count(graph, (member.row.storage for member, _ in members)) > 0
            or (bool(arguments) and peak.step.peak_phase == Phase.BACKWARD),
        ),
        fingerprint=fingerprint((NAME, *sorted(spoken))),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=trace,
        cut=on_trace(cut, trace) if len(spoken) == 1 else cut,
        made_at=tuple(made[:6]),
        sightings=(Sighting(peak.rank, peak.step.step, size),),
        count=len(members),
    )


def _frees_alone(graph: HeapGraph, members: Sequence[tuple[Idle, tuple[int, ...]]], cut: int) -> int:
    """What this cut frees of the memory that lies idle, without the others."""
    idle = {member.row.storage for member, _ in members}
    return int(
        graph.bytes[[s for s in freed_storages(graph, np.asarray([cut], dtype=np.int64)).tolist() if s in idle]].sum()
    )
