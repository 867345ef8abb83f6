"""Memory that is alive at the peak of a step and not used again: late releases and idle memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from leakscope.findings.comm import crossed_count
from leakscope.findings.cut import on_trace
from leakscope.findings.facts import Facts, FreedBy, Origin, RuleName, RunFacts, Severity, Upstream
from leakscope.findings.library import (
    Holders,
    LibraryDragFacts,
    LibraryRetention,
    by_holder,
    holders_of,
    kept_too,
    whole_trace,
)
from leakscope.findings.model import Cut, CutReference, Finding, Hop, HopReason, Sighting, Unjudged
from leakscope.findings.naming import as_expression, fingerprint, generic, hops
from leakscope.graph.model import ROOTS, HeapGraph, Ints, ObjectKind, ReferenceKind, RootKind
from leakscope.graph.ownership import Reach, users_side
from leakscope.graph.paths import ShortestPaths, paths_from_roots
from leakscope.graph.retained import freed_storages
from leakscope.graph.walks import Mask, reachable
from leakscope.run.kinds import Occasion, Phase
from leakscope.run.model import Rank
from leakscope.run.rows_steps import (
    AlikeStorage,
    IdleStorage,
    LifetimesUnjudged,
    StorageLife,
    UntouchedStorage,
    WatchedStep,
)


class Releaser(StrEnum):
    """Who could let go of what is idle at the peak."""

    USER = "user"
    """The user's code."""
    LIBRARY = "library"
    """A library, or a call that runs."""
    GRADIENT = "gradient"
    """zero_grad."""
    COMM = "wire"
    """A Work, once its operation is over."""
    AUTOGRAD = "autograd"
    """A backward still to come."""


@dataclass(frozen=True)
class Idle:
    """One storage that was alive at the peak and is not used again."""

    row: IdleStorage
    holders: Holders
    by: Releaser
    """Who could let go of it."""


@dataclass(frozen=True)
class PeakOfStep:
    """The watched step of one rank: its figures, the heap at its peak, and what was idle then."""

    rank: int
    step: WatchedStep
    graph: HeapGraph
    idle: tuple[Idle, ...]
    rows: tuple[StorageLife, ...]
    """All storages of the step that were made and last used where an idle one was; those that are idle for about as
    long are held in the same way, and the same mended line lets go of them."""

    @property
    def rise(self) -> int:
        """Bytes of the peak above what was alive when the step began."""
        return self.step.peak_bytes - self.step.start_bytes

    def held_by(self, who: Releaser) -> list[Idle]:
        """What is idle and this one could let go of."""
        return [idle for idle in self.idle if idle.by == who]

    @property
    def avoidable_bytes(self) -> int:
        """Bytes at the peak that nothing uses again and that the user's code could have let go."""
        return sum(idle.row.bytes for idle in self.held_by(Releaser.USER))

    def fall(self, idle: Sequence[Idle]) -> int:
        """By how much the step's peak falls when these are released after their last use: another moment may be
        the peak then.
        """
        spans: dict[tuple[str, str], int] = {}
        for entry in idle:
            spans[_site(entry.row)] = min(_span(entry.row), spans.get(_site(entry.row), _span(entry.row)))
        rows = [row for row in self.rows if _site(row) in spans and 2 * _span(row) >= spans[_site(row)]]
        heights = [
            live - sum(row.bytes for row in rows if row.last < number < row.died) for number, live in self.step.curve
        ]
        return self.step.peak_bytes - max(heights, default=self.step.peak_bytes)


def heap_at_peak(rank: Rank) -> tuple[WatchedStep, HeapGraph] | None:
    """The watched step and what was alive at its peak; None where none was watched to its end."""
    step = next((row for row in rank.lifetimes if isinstance(row, WatchedStep)), None)
    looks = (look for look in rank.looks if look.occasion == Occasion.PEAK and step and look.step == step.step)
    look = next(looks, None)
    return None if step is None or look is None else (step, look.heap)


def peak_of(rank: Rank) -> PeakOfStep | None:
    """What the lifetimes of one rank's watched step show; None where none was watched to its end."""
    watched = heap_at_peak(rank)
    if watched is None:
        return None
    step, graph = watched
    users = users_side(graph)
    rows = [
        row
        for row in rank.lifetimes
        if isinstance(row, IdleStorage) and 0 <= row.storage < len(graph) and graph.freed[row.storage] == 0
    ]
    reached: dict[int, Reach] = {}
    holders = _settled(graph, {row.storage: holders_of(graph, row.storage, users, reached) for row in rows})
    idle = [Idle(row, holders[row.storage], _who(graph, holders[row.storage], row, step)) for row in rows]
    alike = tuple(row for row in rank.lifetimes if isinstance(row, (IdleStorage, AlikeStorage)))
    return PeakOfStep(rank.number, step, graph, tuple(idle), alike)


def _settled(graph: HeapGraph, idle: Mapping[int, Holders]) -> dict[int, Holders]:
    """The holders with what the user reaches only inside a library's objects told as one or the other's.

    The user can let go of such an object where that frees the storage, and mostly what lies idle: an output that was
    used up, not a trainer that still runs.
    """
    known: dict[tuple[int, ...], Ints] = {}
    settled = dict(idle)
    for storage, holders in idle.items():
        if holders.inside and not (holders.library or holders.native):
            cuts = tuple(sorted({*holders.users, *holders.handles, *holders.packed}))
            if cuts not in known:
                known[cuts] = freed_storages(graph, np.asarray(cuts, dtype=np.int64))
            if frees_mostly_idle(graph, known[cuts], storage, idle):
                settled[storage] = replace(
                    holders, users=tuple(sorted({*holders.users, *holders.handles})), inside=(), handles=()
                )
    return settled


def frees_mostly_idle(graph: HeapGraph, gone: Ints, storage: int, idle: Collection[int]) -> bool:
    """Whether this storage is among those that would go, and what lies idle is at least half of their bytes."""
    spent = int(graph.bytes[[s for s in gone.tolist() if s in idle]].sum())
    return storage in gone and 2 * spent >= int(graph.bytes[gone].sum())


def _span(row: StorageLife) -> int:
    """Operations from the last use to the death."""
    return row.died - row.last


def _site(row: StorageLife) -> tuple[str, str]:
    return row.made_at, row.last_use_at


def _who(graph: HeapGraph, holders: Holders, row: IdleStorage, step: WatchedStep) -> Releaser:
    if holders.gradient:
        return Releaser.GRADIENT
    if holders.native or holders.library or holders.inside or not (holders.users or holders.work):
        return Releaser.LIBRARY
    if holders.work:
        return Releaser.COMM
    if holders.packed and not arguments_cut(graph, step, holders.users):
        return Releaser.LIBRARY
    if holders.saved and step.backward_follows and row.last_phase != Phase.BACKWARD:
        return Releaser.AUTOGRAD
    return Releaser.USER


def arguments_cut(graph: HeapGraph, step: WatchedStep, cuts: Sequence[int]) -> list[str]:
    """Cuts that are arguments of calls that ran at the peak."""
    running = set(step.arguments)
    names = []
    for cut in cuts:
        r = graph.reference(cut)
        holder = graph.object(r.holder)
        if holder.kind == ObjectKind.FRAME and (holder.name, r.name.removeprefix("local ")) in running:
            names.append(r.name.removeprefix("local "))
    return list(dict.fromkeys(names))


@dataclass(frozen=True, kw_only=True)
class LagUseDrag(RunFacts):
    """How long the storages lived that the step before a watched step had made and let go."""

    step: int
    storages: int
    lag_byte_seconds: float
    """Before the first use."""
    use_byte_seconds: float
    drag_byte_seconds: float
    """After the last use."""


@dataclass(frozen=True, kw_only=True)
class IdleAtPeak(RunFacts):
    """How much of a watched step's peak was not used again, and who could let go of it."""

    step: int
    device: str
    peak_bytes: int
    peak_at: str
    """The line that ran then, "" where it is not known."""
    idle_bytes: int
    by: Mapping[Releaser, int]
    """Those of the idle bytes that each could let go of."""
    unseen_bytes: int
    """What other threads or native code had made unseen; it is beside the peak."""


def drag(rank: Rank) -> tuple[RunFacts, ...]:
    """Two facts of a rank of which a step was watched storage by storage; none of others."""
    peak = peak_of(rank)
    return () if peak is None else (*_lived(rank.number, peak.step), _idle_at_peak(rank.number, peak))


def _lived(rank: int, step: WatchedStep) -> list[RunFacts]:
    if step.lag_byte_seconds + step.use_byte_seconds + step.drag_byte_seconds <= 0:
        return []
    return [
        LagUseDrag(
            rank=rank,
            step=step.step,
            storages=step.storages,
            lag_byte_seconds=step.lag_byte_seconds,
            use_byte_seconds=step.use_byte_seconds,
            drag_byte_seconds=step.drag_byte_seconds,
        )
    ]


def _idle_at_peak(rank: int, peak: PeakOfStep) -> RunFacts:
    step = peak.step
    return IdleAtPeak(
        rank=rank,
        step=step.step,
        device=step.device,
        peak_bytes=step.peak_bytes,
        peak_at=step.peak_at,
        idle_bytes=sum(storage.row.bytes for storage in peak.idle),
        by={who: sum(storage.row.bytes for storage in peak.held_by(who)) for who in Releaser},
        unseen_bytes=step.unseen_bytes,
    )


NAME = RuleName.LATE_RELEASE
_SHARE_THRESHOLD = 0.05
"""Share of the step's own peak, above what was alive when it began, from which what somebody else holds is worth
a word.
"""
_MIN_FACTOR = 16
"""And at least this many times `min_bytes`."""
_OTHERS = (Releaser.GRADIENT, Releaser.COMM, Releaser.AUTOGRAD)
"""Not `LIBRARY`: what a library that nobody knows or a running call keeps has no holder to name and nothing to do."""


@dataclass(frozen=True)
class OthersFacts(Facts):
    """Memory at the step's peak that nothing uses again and that only somebody else could let go."""

    bytes: int
    by: Releaser
    fall_bytes: int
    """By how much the step's peak would fall."""


def others_findings(peak: PeakOfStep, min_bytes: int, least: float, reported: Collection[str]) -> list[Finding]:
    """One for each holder of a library that is known, but for those `reported` already, then one for each other sort
    that would let the peak fall by `least` bytes.
    """
    by_storage = {idle.row.storage: idle for idle in peak.held_by(Releaser.LIBRARY)}
    kept = by_holder(peak.graph, list(by_storage), alone=True)
    findings = []
    for kept_by in kept:
        idle = [by_storage[storage] for storage in kept_by.holds]
        if kept_by.known.holder not in reported and _bytes(idle) >= least:
            findings.append(_known(peak, kept_by, idle))
    named = {storage for kept_by in kept for storage in kept_by.holds}
    for who in _OTHERS:
        idle = [entry for entry in peak.held_by(who) if entry.row.storage not in named]
        if who == Releaser.GRADIENT and peak.step.peak_phase == Phase.OPTIMIZER:
            continue  # the optimizer itself still holds them: no zero_grad could come before
        if peak.fall(idle) >= least and _bytes(idle) >= max(_MIN_FACTOR * min_bytes, _SHARE_THRESHOLD * peak.rise, 1):
            findings.append(_unknown(peak, who, idle))
    return findings


def _bytes(idle: Sequence[Idle]) -> int:
    return sum(entry.row.bytes for entry in idle)


def _made_at(idle: Sequence[Idle]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.row.made_at for entry in idle if entry.row.made_at))[:6]


def _known(peak: PeakOfStep, kept: LibraryRetention, idle: Sequence[Idle]) -> Finding:
    graph, known, size = peak.graph, kept.known, _bytes(idle)
    frees = kept.frees(graph)
    typical = max(kept.holds, key=lambda s: (int(graph.bytes[s]), s))
    hold = kept.of_its_own(typical)[0]
    trace = whole_trace(graph, paths_from_roots(graph), hold, frees)
    named = CutReference(known.holder, indexes=hold.path[:1])
    return Finding(
        rule=NAME,
        facts=LibraryDragFacts(
            known.holder, size, len(kept.holds), kept_too(graph, kept), known.cure, peak.step.peak_at
        ),
        fingerprint=fingerprint(("kept by library at the peak", known.holder)),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=trace,
        cut=on_trace(Cut((named,), frees), trace) if frees else None,
        origin=Origin.LIBRARY,
        library="torch",
        upstream=Upstream(known.issue, known.what),
        made_at=_made_at(idle),
        sightings=(Sighting(peak.rank, peak.step.step, size),),
        count=len(idle),
    )


def _unknown(peak: PeakOfStep, who: Releaser, idle: Sequence[Idle]) -> Finding:
    size = _bytes(idle)
    return Finding(
        rule=NAME,
        facts=OthersFacts(bytes=size, by=who, fall_bytes=peak.fall(idle)),
        fingerprint=fingerprint((NAME, who)),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        made_at=_made_at(idle),
        sightings=(Sighting(peak.rank, peak.step.step, size),),
        count=len(idle),
    )


NAMES_SHOWN = 6
"""Names at the most, chosen, of references to cut."""


def line_above(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """The line of this reference, or of the nearest one above it that has a line."""
    for above in [reference, *paths.path_to(graph, int(graph.holder[reference]))[::-1]]:
        r = graph.reference(above)
        if where := r.where or graph.object(r.holder).where:
            return where
    return ""


def spoken_as(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """As its user would write it, along the shortest path."""
    path = [*paths.path_to(graph, int(graph.holder[reference])), reference]
    return as_expression(graph, path, reference)


def variables(graph: HeapGraph, cuts: Sequence[int]) -> tuple[str, ...]:
    """Their names, where all of them are variables of running functions or of the script; else ()."""
    holders = [graph.object(int(graph.holder[c])) for c in cuts]
    own = [holder.kind == ObjectKind.FRAME or holder.name == "__main__" for holder in holders]
    names = dict.fromkeys(graph.reference(c).name.removeprefix("local ").removeprefix(".") for c in cuts)
    return tuple(names) if all(own) and all(map(str.isidentifier, names)) else ()


def together(spoken: Sequence[str]) -> str:
    """`inputs and outputs in step(), batch in main()`."""
    places: dict[str, list[str]] = defaultdict(list)
    for text in spoken[:NAMES_SHOWN]:
        name, _, place = text.partition(" in ")
        places[place].append(name)
    parts = [_listed(names) + (f" in {place}" if place else "") for place, names in places.items()]
    more = f" and {len(spoken) - NAMES_SHOWN} more" if len(spoken) > NAMES_SHOWN else ""
    return ", ".join(parts) + more


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def trace_through(graph: HeapGraph, paths: ShortestPaths, cut: int, storage: int, frees: int) -> tuple[Hop, ...]:
    """From the root through the cut down to the storage."""
    above = paths.path_to(graph, int(graph.holder[cut]))
    path = [*above, cut]
    came: dict[int, int] = {int(graph.held[cut]): -1}
    waiting = [int(graph.held[cut])]
    while waiting and storage not in came:
        here = waiting.pop(0)
        for reference in graph.out_of(here).tolist():
            held = int(graph.held[reference])
            if held not in came:
                came[held] = reference
                waiting.append(held)
    down: list[int] = []
    at = storage
    while came.get(at, -1) >= 0:
        down.append(came[at])
        at = int(graph.holder[came[at]])
    path += down[::-1]
    start = int(graph.holder[path[0]])
    return hops(graph, start, path, len(above) + 1, {cut: frees}, (HopReason.STILL_NEEDED, HopReason.NOT_USED_AGAIN))


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


_OF_ERRORS = (ObjectKind.EXCEPTION, ObjectKind.TRACEBACK)


@dataclass(frozen=True, kw_only=True)
class UntouchedFacts(Facts):
    """Memory that the watched steps did not touch."""

    bytes: int
    host_bytes: int
    """Those of them in host memory, where the peak is an accelerator's."""
    holders: int
    """How many references keep it, all in the cut."""
    first_step: int
    """The first of the watched steps; it was there before."""
    last_step: int
    variables: tuple[str, ...]
    """The holders' names where each is a variable of a function or the script, for `del`; else ()."""
    functions: tuple[str, ...]
    """Functions that have ended, whose variables a traceback keeps; () where running code holds it."""


def idle_findings(
    rank: Rank, min_bytes: int, told: Sequence[Finding] = (), worth_share: float = WORTH_SHARE
) -> list[Finding]:
    """One for each holder of what no operation of the watched steps touched, where it is worth a line.

    Told is only what goes free when variables are let go that no code reads again: those of running functions and of
    the script, as their bytecode says, and those of functions that have ended and that a traceback keeps. An
    attribute or an item may be needed later, as weights of an average or data to validate with: nobody can tell.

    `told` are the findings of what grows: what is held by way of the cut of one of these is told there.
    """
    watched = heap_at_peak(rank)
    if watched is None:
        return []
    step, graph = watched
    rows = (row.storage for row in rank.lifetimes if isinstance(row, UntouchedStorage))
    untouched = {storage for storage in rows if 0 <= storage < len(graph) and graph.freed[storage] == 0}
    ended = _ended(graph)
    unread = _unread(graph, step)
    locals_ = np.flatnonzero(ended[graph.holder] & (graph.reference_kind == _LOCAL))
    gone = untouched.intersection(freed_storages(graph, np.concatenate([unread, locals_])).tolist())
    if not gone:
        return []
    least = max(min_bytes, worth_share * step.peak_bytes, 1)
    candidates = np.concatenate([unread, _entries(graph, ended)])
    found = (
        _untouched_finding(rank.number, step, graph, cuts, gone, ended) for cuts in _together(graph, candidates, gone)
    )
    worth = [finding for finding in found if finding is not None and finding.retained_bytes >= least]
    ways = [_way(leak)[: leak.cut_position + 1] for leak in told if leak.cut_position is not None]
    return [finding for finding in worth if not any(_way(finding)[: len(way)] == way for way in ways)]


def _way(finding: Finding) -> list[tuple[str, str]]:
    """What leads to the memory, the same at every look."""
    return [(hop.type if place else hop.object, hop.reference) for place, hop in enumerate(finding.trace)]


_LOCAL = tuple(ReferenceKind).index(ReferenceKind.LOCAL)


def _ended(graph: HeapGraph) -> Mask:
    """Frames of functions that have ended: neither running nor a generator's that may go on."""
    ended = np.zeros(len(graph), dtype=bool)
    for frame in graph.of_kind(ObjectKind.FRAME).tolist():
        holders = (graph.object(int(graph.holder[r])).kind for r in graph.into(frame).tolist())
        ended[frame] = graph.object(frame).root == RootKind.NONE and ObjectKind.GENERATOR not in holders
    return ended


def _unread(graph: HeapGraph, step: WatchedStep) -> Ints:
    """References of variables that no code reads from here on."""
    names = {(place, name) for place, name in step.unread if 0 <= place < len(graph)}
    found = [
        r for place in {place for place, _ in names} for r in graph.out_of(place).tolist()
        if (place, graph.reference(r).name) in names
    ]  # fmt: skip
    return np.asarray(sorted(found), dtype=np.int64)


def _entries(graph: HeapGraph, ended: Mask) -> Ints:
    """References by which what a person can name holds an exception, a traceback or the frame of a function that has
    ended.
    """
    inside = ended.copy()
    for kind in _OF_ERRORS:
        inside[graph.of_kind(kind)] = True
    of_program = (RootKind.NONE, RootKind.MODULE, RootKind.FRAME, RootKind.CALLBACK)
    named = np.isin(graph.root, [ROOTS.index(root) for root in of_program])
    entries: Ints = np.flatnonzero((named & ~inside)[graph.holder] & inside[graph.held])
    return entries


def _together(graph: HeapGraph, candidates: Ints, gone: set[int]) -> list[list[int]]:
    """The references that lead to what would go, those that lead to the same of it together, and items of one
    container.
    """
    groups: list[tuple[list[int], set[int]]] = []
    above = reachable(len(graph), graph.held, graph.holder, np.asarray(sorted(gone), dtype=np.int64))
    for reference in dict.fromkeys(candidates[above[graph.held[candidates]]].tolist()):
        start = np.asarray([graph.held[reference]], dtype=np.int64)
        below = gone.intersection(np.flatnonzero(reachable(len(graph), graph.holder, graph.held, start)).tolist())
        holder = int(graph.holder[reference])
        if graph.object(holder).kind == ObjectKind.CONTAINER:
            below.add(holder)
        shared = [group for group in groups if not below.isdisjoint(group[1])]
        groups = [group for group in groups if below.isdisjoint(group[1])]
        references = [r for group in shared for r in group[0]]
        groups.append(([*references, reference], below.union(*(group[1] for group in shared))))
    return [references for references, _ in groups]


def _fewest(graph: HeapGraph, cuts: list[int]) -> tuple[list[int], set[int]]:
    """(those of the references that are needed, the storages that cutting them frees).

    An item is tried before the variable that has the container, which goes on needing to be let go of.
    """
    freed = set(freed_storages(graph, np.asarray(cuts, dtype=np.int64)).tolist())
    for reference in sorted(cuts, key=lambda c: (_is_variable(graph, c), -c))[: NAMES_SHOWN * 2]:
        fewer = [c for c in cuts if c != reference]
        if fewer and freed.issubset(freed_storages(graph, np.asarray(fewer, dtype=np.int64)).tolist()):
            cuts = fewer
    return cuts, freed


def _is_variable(graph: HeapGraph, reference: int) -> bool:
    return graph.object(int(graph.holder[reference])).kind in (ObjectKind.FRAME, ObjectKind.NAMESPACE)


def _untouched_finding(
    rank: int, step: WatchedStep, graph: HeapGraph, cuts: list[int], gone: set[int], ended: Mask
) -> Finding | None:  # fmt: skip
    """All that these references keep; None where cutting them does not free it, as what a handler is busy with."""
    cuts, freed = _fewest(graph, cuts)
    storages = sorted(freed & gone, key=lambda s: (-int(graph.bytes[s]), s))
    if not storages:
        return None
    size = int(graph.bytes[storages].sum())
    of_host = [s for s in storages if step.device != "cpu" and graph.device.get(s, "cpu") != step.device]
    paths = paths_from_roots(graph)
    cuts.sort(key=lambda c: (not _is_variable(graph, c), c))
    spoken = list(dict.fromkeys(spoken_as(graph, paths, c) for c in cuts))
    trace = trace_through(graph, paths, cuts[0], storages[0], size)
    named = CutReference(
        ", ".join(dict.fromkeys(generic(graph.reference(c).name) for c in cuts[:NAMES_SHOWN])),
        line_above(graph, paths, cuts[0]),
        together(spoken),
        tuple(cuts),
    )
    cut = Cut((named,), size)
    return Finding(
        rule=RuleName.IDLE_MEMORY,
        facts=UntouchedFacts(
            bytes=size,
            host_bytes=int(graph.bytes[of_host].sum()),
            holders=len(spoken),
            first_step=step.step - 1,
            last_step=step.step,
            variables=variables(graph, cuts),
            functions=_functions(graph, cuts, storages, ended),
        ),
        fingerprint=fingerprint((RuleName.IDLE_MEMORY, *sorted(spoken))),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=trace,
        cut=on_trace(cut, trace) if len(spoken) == 1 else cut,
        made_at=tuple(dict.fromkeys(graph.made_at[s] for s in storages if s in graph.made_at))[:NAMES_SHOWN],
        sightings=(Sighting(rank, step.step, size),),
        count=len(storages),
    )


def _functions(graph: HeapGraph, cuts: Sequence[int], storages: Sequence[int], ended: Mask) -> tuple[str, ...]:
    """The functions that have ended whose variables hold the storages, by way of these references."""
    below = reachable(len(graph), graph.holder, graph.held, graph.held[np.asarray(cuts, dtype=np.int64)])
    names = []
    for frame in np.flatnonzero(ended & below).tolist():
        of_locals = [r for r in graph.out_of(frame).tolist() if graph.reference_kind[r] == _LOCAL]
        held = reachable(len(graph), graph.holder, graph.held, graph.held[np.asarray(of_locals, dtype=np.int64)])
        if held[list(storages)].any():
            names.append(f"{graph.object(frame).name}()")
    return tuple(dict.fromkeys(names))
