"""Attributes cycles and retained memory to the library whose code holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple

import numpy as np

from leakscope.findings.candidates import Candidate
from leakscope.findings.cut import on_trace
from leakscope.findings.facts import Facts, FreedBy, LibraryIssue, Origin, Severity
from leakscope.findings.growth import MIN_SNAPSHOTS, Series, series
from leakscope.findings.known_leaks import KNOWN, TYPES, KnownLeak, known_leak
from leakscope.findings.model import Cut, CutReference, Finding, Hop, HopReason, Sighting
from leakscope.findings.naming import as_part_of_holder, fingerprint, hops
from leakscope.findings.thresholds import Thresholds
from leakscope.graph.model import REACHABLE, ROOTS, HeapGraph, ObjectKind, ReferenceKind, RootKind
from leakscope.graph.ownership import (
    Climb,
    Owner,
    Reach,
    belongs_to_library,
    is_built_with,
    is_library_line,
    is_library_state,
    is_outside_users_files,
    is_users,
    owner_of,
    reach_of,
)
from leakscope.graph.paths import ShortestPaths, paths_from_roots
from leakscope.graph.retained import freed_storages
from leakscope.graph.walks import Mask
from leakscope.run.model import HeapSnapshot, Rank
from leakscope.run.rows import Occasion
from leakscope.units import bytes_text


class Trend(StrEnum):
    """The change of what is kept between snapshots."""

    GROWS = "grows"
    STEADY = "steady"
    """Equal at every snapshot."""
    VARIES = "varies"
    UNKNOWN = "unknown"
    """Too few snapshots contain it."""


@dataclass(frozen=True)
class KeptToo:
    """Another holder of some of the storages."""

    name: str
    """As written in code."""
    storages: int


@dataclass(frozen=True)
class LibraryFacts(Facts):
    """What one known holder of a library keeps."""

    SUMMED = ("bytes", "storages")

    holder: str
    """As written in code: `PipelineStage.fwd_cache`."""
    bytes: int
    storages: int
    kept_too: tuple[KeptToo, ...]
    """The holder of most of them first."""
    cure: str
    """The workaround for the script; "" if only the library can fix it."""


_COURSES = {
    Trend.GROWS: "It grows.",
    Trend.STEADY: "It does not grow.",
    Trend.VARIES: "It does not grow at every snapshot.",
    Trend.UNKNOWN: "",
}


def _joined(facts: LibraryFacts, more: str) -> str:
    parts = []
    for other in facts.kept_too:
        whole = "all of it" if other.storages == facts.storages else f"{other.storages} of {facts.storages} storages"
        parts.append(f"Also retained by {other.name}: {whole}.")
    return " ".join(part for part in (*parts, more, facts.cure) if part)


@dataclass(frozen=True)
class RetentionFacts(LibraryFacts):
    """Memory that a library keeps from step to step."""

    course: Trend

    def title_for(self, _: Finding) -> str:
        """Title: what a library keeps from step to step."""
        return f"torch's {self.holder} retains {bytes_text(self.bytes)} between steps"

    def advice_for(self, _: Finding) -> str:
        """Advice: other holders, the trend, and what the script can do."""
        return _joined(self, _COURSES[self.course])


@dataclass(frozen=True)
class LibraryDragFacts(LibraryFacts):
    """Memory that a library keeps through a step's peak without using it again."""

    peak_at: str
    """Line at the memory's peak."""

    def title_for(self, _: Finding) -> str:
        """Title: what a library keeps through the step's peak."""
        return f"torch's {self.holder} retains {bytes_text(self.bytes)} at the step's peak without using it again"

    def advice_for(self, _: Finding) -> str:
        """Advice: other holders, the time of the peak, and what the script can do."""
        return _joined(self, f"The peak of the step is at {self.peak_at}.")


_PASSED = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE, ObjectKind.SAVED_TENSOR, ObjectKind.STORAGE)
_MAX_VISITED = 4000
"""Objects visited on the way up from one storage: its tensors and the grad graphs that saved them."""
_NOBODYS = (RootKind.NATIVE, RootKind.INTERPRETER, RootKind.THREAD)
"""Roots without a line of the script."""


class _Side(Enum):
    """Who could release one reference."""

    USERS = auto()
    LIBRARY = auto()
    INSIDE = auto()
    """The user's code, by releasing a library's object."""
    WORK = auto()
    GRADIENT = auto()
    OPERAND = auto()
    """The running statement."""


@dataclass(frozen=True)
class StorageHolders:
    """The references that keep one storage, up to the first objects from which a user could remove it."""

    users: tuple[int, ...]
    """References that the user's code could drop: a local, an item, an attribute, a closure variable."""
    library: tuple[int, ...]
    """References of libraries' frames and objects."""
    native: bool
    """References of a running call's C++ or of native code."""
    packed: tuple[int, ...]
    """References of tuples that a running call holds: the packed arguments of `f(*args)`, or a library's."""
    gradient: bool
    """A parameter's `.grad`."""
    work: bool
    """A Work whose operation is still running, or was not waited for."""
    saved: bool
    """References on a path through a tensor that a grad node saved."""
    inside: tuple[int, ...] = ()
    """References inside library objects that the user's code reaches only through these:"""
    handles: tuple[int, ...] = ()
    """the user's references to those objects."""


def holders_of(graph: HeapGraph, storage: int, users: Mask, reached: dict[int, Reach] | None = None) -> StorageHolders:
    """All holders of one storage.

    `users` is `users_side(graph)`; `reached` caches results over storages of the graph.
    """
    reached = {} if reached is None else reached
    by_side: dict[_Side, list[int]] = {side: [] for side in _Side}
    tuples: list[int] = []
    native = saved = False
    climb = Climb(storage, _MAX_VISITED)
    for here in climb:
        if ROOTS[graph.root[here]] in _NOBODYS:
            if graph.object(here).type == "tuple":
                tuples.append(here)
            else:
                native = True
        for reference in graph.into(here).tolist():
            saved = saved or graph.reference(reference).kind == ReferenceKind.SAVED
            side = _side(graph, reference, users, reached)
            if side is None:
                climb.go_on(int(graph.holder[reference]), reference)
            else:
                by_side[side].append(reference)
    of_library = [r for r in by_side[_Side.WORK] if belongs_to_library(graph, int(graph.holder[r]))]
    inside = by_side[_Side.INSIDE]
    return StorageHolders(
        users=tuple(sorted(by_side[_Side.USERS])),
        library=tuple(sorted([*by_side[_Side.LIBRARY], *of_library])),
        native=native or bool(by_side[_Side.OPERAND]) or not climb.complete,
        packed=tuple(r for here in tuples for r in graph.out_of(here).tolist() if int(graph.held[r]) in climb.by),
        gradient=bool(by_side[_Side.GRADIENT]),
        work=bool(by_side[_Side.WORK]),
        saved=saved,
        inside=tuple(sorted(inside)),
        handles=tuple(sorted({handle for r in inside for handle in reached[int(graph.holder[r])].handles})),
    )


def _side(graph: HeapGraph, reference: int, users: Mask, reached: dict[int, Reach]) -> _Side | None:
    """The classification of one reference on the way up; None if its own holders must be visited."""
    r = graph.reference(reference)
    holder = graph.object(r.holder)
    if r.kind == ReferenceKind.OPERAND:
        return _Side.OPERAND
    if holder.kind == ObjectKind.PARAMETER and r.name == ".grad":
        return _Side.GRADIENT
    if holder.kind == ObjectKind.WORK:
        return _Side.WORK
    if holder.kind in _PASSED or holder.type == "tuple":
        return None
    if not users[r.holder] or belongs_to_library(graph, r.holder):
        return _Side.LIBRARY
    if r.holder not in reached:
        reached[r.holder] = reach_of(graph, r.holder)
    reach = reached[r.holder]
    return _Side.USERS if reach.own else _Side.INSIDE if reach.handles else _Side.LIBRARY


KNOWN_CYCLES = {"_pytest._code.code.ExceptionInfo": "pytest"}
"""Qualified type name on a cycle, mapped to the library: `pytest.raises(...) as caught` holds the frame that holds
`caught`.
"""
_OF_CODE = (ObjectKind.FRAME, ObjectKind.FUNCTION, ObjectKind.METHOD, ObjectKind.GENERATOR)
"""Kinds of objects with the line of the code that they run."""


class _Maker(Enum):
    """Whose code created a reference."""

    USER = auto()
    """The user's, or unknown."""
    LIBRARY = auto()
    SHARED = auto()
    """An item of a container, a hook of a tensor, `__wrapped__`: created by whoever made what it leads to."""


class _Made(NamedTuple):
    maker: _Maker
    package: str = ""
    of_class: bool = False
    """Whether the class was made by code of Python or torch."""


def origin_of(candidate: Candidate, cuts: Sequence[int] = ()) -> tuple[Origin, str]:
    """The origin of a leak, and the library's name if known; `cuts` are the references to cut.

    It is a library's if a known one closes the cycle, or if every named line on it belongs to a library. It also is if
    a package's own functions, or attributes set by its classes, are on the cycle while nothing made by the user is, and
    nothing to cut is the user's; instances of the user's classes may be. A library's method that the user registers as
    a hook looks as if the library had done so.
    """
    graph, group = candidate.graph, candidate.group
    references = list(group.cycles[0]) if group.cycles else list(group.path)
    holders = [graph.object(int(graph.holder[r])) for r in references]
    if group.cycles and any(holder.name in KNOWN_CYCLES for holder in holders):
        return Origin.LIBRARY, next(KNOWN_CYCLES[holder.name] for holder in holders if holder.name in KNOWN_CYCLES)
    if group.freed == REACHABLE:
        return Origin.APPLICATION, ""
    named = [line for line in (*(h.where for h in holders), *(graph.reference(r).where for r in references)) if line]
    if named and all(map(is_outside_users_files, named)):
        return Origin.LIBRARY, _package_of(named)
    made = [_made(graph, r) for r in references]
    packages = [
        one.package for one in made if one.maker == _Maker.LIBRARY and (one.of_class or not is_built_with(one.package))
    ]
    theirs = _Maker.USER not in {one.maker for one in (*made, *(_made(graph, r) for r in cuts))}
    return (Origin.LIBRARY, packages[0]) if group.cycles and theirs and packages else (Origin.APPLICATION, "")


def _made(graph: HeapGraph, reference: int) -> _Made:
    r = graph.reference(reference)
    holder, held = graph.object(r.holder), graph.object(r.held)
    if r.where or (held.kind in _OF_CODE and is_users(held)):
        return _Made(_Maker.USER)
    if holder.kind in _OF_CODE:
        library = is_library_line(holder.where)
        return _Made(_Maker.LIBRARY, _package_of([holder.where])) if library else _Made(_Maker.USER)
    if holder.kind == ObjectKind.CLASS:  # its module is that of the code that made it, except by `make_dataclass`
        theirs = "." in holder.name and is_built_with(holder.name) and not holder.name.startswith("types.")
        return _Made(_Maker.LIBRARY, holder.name.partition(".")[0], True) if theirs else _Made(_Maker.USER)
    if r.kind == ReferenceKind.ATTRIBUTE and not (r.name.startswith(".__") and r.name.endswith("__")):
        package = graph.set_by.get(reference, "")
        if not package and r.name.startswith("._") and owner_of(holder) == Owner.LIBRARY:
            package = holder.type.partition(".")[0]
        return _Made(_Maker.LIBRARY, package) if package else _Made(_Maker.USER)
    return _Made(_Maker.SHARED)


def _package_of(lines: Iterable[str]) -> str:
    """The package of a line, `gpytorch` of `<gpytorch/module.py>:375`, `six` of `<six.py>:30`; "" if unknown."""
    files = [line.removeprefix("<").partition(">")[0] for line in sorted(lines)]
    return next((file.partition("/")[0].removesuffix(".py") for file in files if not file.startswith("<")), "")


_PASSED_ON_PATHS = (
    ObjectKind.STORAGE,
    ObjectKind.TENSOR,
    ObjectKind.PARAMETER,
    ObjectKind.GRAD_NODE,
    ObjectKind.SAVED_TENSOR,
    ObjectKind.CONTAINER,
    ObjectKind.WORK,
)
_RECORDS = (f"{TYPES}stage._RecvInfo", "torch.distributed.distributed_c10d.P2POp")
"""Small objects that a stage or schedule keeps for each microbatch: their holder is more informative."""


@dataclass(frozen=True)
class Hold:
    """An object, function or frame of a library, with the references from it down to a storage."""

    known: KnownLeak
    owner: int
    path: tuple[int, ...]

    def is_direct(self, graph: HeapGraph) -> bool:
        """Whether no grad graph is between: the tensor itself is kept, not what autograd saved below it."""
        return all(_is_direct(graph, r) for r in self.path)


@dataclass(frozen=True)
class Holds:
    """Everything that keeps one storage."""

    known: tuple[Hold, ...]
    running: bool
    """Whether a running frame or function of a library keeps it too."""
    others: tuple[int, ...]
    """References of the script that keep it too."""
    native: bool
    """Whether native code keeps it too, or there are more holders than could be visited."""


def holds_of(graph: HeapGraph, storage: int, through_graphs: bool = True) -> Holds:
    """Everything that keeps a storage, up to the first objects other than tensors, grad nodes and containers.

    Without `through_graphs`, only holders of a tensor itself, not of a graph that saved it.
    """
    known_holds: list[Hold] = []
    others: list[int] = []
    running = native = False
    comm_used = storage in graph.comm_uses if graph.comm_uses else None
    climb = Climb(storage)
    for here in climb:
        native = native or bool(graph.root[here])
        for reference in graph.into(here).tolist():
            holder = int(graph.holder[reference])
            if holder in climb.by or not (through_graphs or _is_direct(graph, reference)):
                continue
            obj = graph.object(holder)
            if obj.kind in _PASSED_ON_PATHS or obj.type in _RECORDS:
                climb.go_on(holder, reference)
            elif not is_library_state(obj):
                others.append(reference)
            else:
                path = [reference, *_down(graph, climb.by, here)]
                known = known_leak(hops(graph, holder, path, 0, {}, (None, None)), comm_used)
                if known is not None:
                    known_holds.append(Hold(known, holder, tuple(path)))
                running = running or known is None
    return Holds(tuple(known_holds), running, tuple(others), native or not climb.complete)


def _is_direct(graph: HeapGraph, reference: int) -> bool:
    return graph.reference(reference).kind not in (ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED)


def _down(graph: HeapGraph, by: Mapping[int, int], here: int) -> list[int]:
    """The references by which the climb reached an object, downwards."""
    path = []
    while (reference := by[here]) >= 0:
        path.append(reference)
        here = int(graph.held[reference])
    return path


def whole_trace(graph: HeapGraph, paths: ShortestPaths, hold: Hold, frees: int) -> tuple[Hop, ...]:
    """The trace from a root to the holder and down to the storage."""
    above = paths.path_to(graph, hold.owner)
    path = [*above, *hold.path]
    start = int(graph.holder[path[0]])
    return hops(
        graph,
        start,
        path,
        len(above) + 1,
        {hold.path[0]: frees} if frees else {},
        (HopReason.ABOVE_LIBRARY, HopReason.KEPT_BY_LIBRARY),
    )


def freed_by(graph: HeapGraph, holds: Iterable[Hold], storages: Iterable[int]) -> int:
    """Bytes of these storages freed if the holders alone released the tensors."""
    cuts = {
        next((r for r in hold.path[::-1] if graph.reference(r).kind != ReferenceKind.MEMORY), hold.path[0])
        for hold in holds
    }
    gone = freed_storages(graph, np.asarray(sorted(cuts), dtype=np.int64))
    return int(graph.bytes[np.intersect1d(gone, np.asarray(sorted(storages), dtype=np.int64))].sum())


_OTHERS_SHOWN = 3
"""Other holders reported, one sentence each. Heuristic."""


@dataclass(frozen=True)
class LibraryRetention:
    """Storages of one snapshot that one known holder keeps, with everything that keeps each."""

    known: KnownLeak
    holds: Mapping[int, Holds]
    """By storage."""

    def of_its_own(self, storage: int) -> list[Hold]:
        """The storages' holds by this holder itself."""
        return [hold for hold in self.holds[storage].known if hold.known == self.known]

    def frees(self, graph: HeapGraph) -> int:
        """Bytes freed if this holder alone released them."""
        return freed_by(graph, (hold for storage in self.holds for hold in self.of_its_own(storage)), self.holds)

    def others(self, graph: HeapGraph) -> dict[str, int]:
        """Other holders, with the number of storages each keeps."""
        counts: dict[str, int] = defaultdict(int)
        for holds in self.holds.values():
            names = [hold.known.holder for hold in holds.known if hold.known != self.known]
            names += ["a running call of the library"] * holds.running + ["native code"] * holds.native
            for name in dict.fromkeys([*names, *(_holder_text(graph, r) for r in holds.others[:2])]):
                counts[name] += 1
        return dict(counts)


def by_holder(graph: HeapGraph, storages: Sequence[int], alone: bool) -> list[LibraryRetention]:
    """The storages that known holders keep; one with several belongs to the first of `KNOWN`.

    `alone`: only what neither the script nor native code keeps too; else only what is kept without a grad graph
    between.
    """
    if not any(name.startswith(TYPES) for name in graph.strings):
        return []
    storages_of: dict[str, dict[int, Holds]] = defaultdict(dict)
    for storage in storages:
        if not (alone or holds_of(graph, storage, through_graphs=False).known):
            continue
        holds = holds_of(graph, storage)
        known = [h.known for h in holds.known if alone or h.is_direct(graph)]
        if known and not (alone and (holds.others or holds.native)):
            storages_of[min(known, key=KNOWN.index).holder][storage] = holds
    return [LibraryRetention(known, storages_of[known.holder]) for known in KNOWN if known.holder in storages_of]


def _holder_text(graph: HeapGraph, reference: int) -> str:
    """The holder, `losses in train()`, for a running function or a suspended generator."""
    r = graph.reference(reference)
    holder = graph.object(r.holder)
    in_function = r.kind == ReferenceKind.LOCAL and holder.kind in (ObjectKind.FRAME, ObjectKind.GENERATOR)
    return f"{r.name.removeprefix('local ')} in {holder.name}()" if in_function else as_part_of_holder(graph, reference)


def kept_by_library(
    rank: Rank, snapshots: Sequence[HeapSnapshot], growing: Sequence[Finding], thresholds: Thresholds
) -> dict[str, Finding]:
    """Map each holder that keeps something at the last snapshot to a finding; a note unless it grows.

    `growing` are the growing findings of this rank: what they name is not reported again.
    """
    if len(snapshots) <= 1 or snapshots[-1].occasion == Occasion.BLOCK:
        return {}
    named = {index for finding in growing for index in finding.storages.get(rank.number, ())}
    last = snapshots[-1]
    graph = last.heap
    reachable = [s for s in graph.storages.tolist() if graph.freed[s] == REACHABLE]
    kept = by_holder(graph, [s for s in reachable if s not in named], alone=False)
    sizes: dict[str, dict[int, int]] = defaultdict(dict)
    for snapshot in snapshots[:-1] if kept else ():
        alive = [s for s in snapshot.heap.storages.tolist() if snapshot.heap.freed[s] == REACHABLE]
        for retention in by_holder(snapshot.heap, alive, alone=False):
            sizes[retention.known.holder][snapshot.step] = _bytes(snapshot.heap, retention)
    findings = {}
    for retention in kept:
        size = _bytes(graph, retention)
        if (
            size < max(thresholds.for_counters, 1) or not sizes[retention.known.holder]
        ):  # seen once, it may be released when the next step begins
            continue
        line = series([snapshot.step for snapshot in snapshots], {**sizes[retention.known.holder], last.step: size})
        findings[retention.known.holder] = _finding(rank, graph, retention, line, size, thresholds)
    return findings


def _bytes(graph: HeapGraph, kept: LibraryRetention) -> int:
    return int(graph.bytes[list(kept.holds)].sum())


def _finding(
    rank: Rank, graph: HeapGraph, kept: LibraryRetention, line: Series, size: int, thresholds: Thresholds
) -> Finding:
    known, count = kept.known, len(kept.holds)
    typical = max(kept.holds, key=lambda s: (int(graph.bytes[s]), s))
    frees = kept.frees(graph)
    grows = line.grew_lately
    hold = kept.of_its_own(typical)[0]
    trace = whole_trace(graph, paths_from_roots(graph), hold, frees)
    named = CutReference(known.holder, indexes=hold.path[:1])
    return Finding(
        rule=known.rule,
        facts=RetentionFacts(known.holder, size, count, kept_too(graph, kept), known.cure, _course(line)),
        fingerprint=fingerprint(("kept by library", known.holder)),
        severity=Severity.LEAK if grows and line.is_leak(thresholds.for_data()) else Severity.NOTE,
        least_per_step=thresholds.for_data(),
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=line.per_step if grows else 0.0,
        trace=trace,
        cut=on_trace(Cut((named,), frees), trace) if frees else None,
        origin=Origin.LIBRARY,
        library="torch",
        upstream=LibraryIssue(known.issue, known.what),
        made_at=tuple(dict.fromkeys(graph.made_at[s] for s in kept.holds if s in graph.made_at))[:6],
        sightings=tuple(Sighting(rank.number, s, b) for s, b in zip(line.steps, line.bytes, strict=True) if b),
        count=count,
        storages={rank.number: tuple(kept.holds)},
    )


def _course(line: Series) -> Trend:
    if line.grew_lately:
        return Trend.GROWS
    if len(line.bytes) < MIN_SNAPSHOTS:
        return Trend.UNKNOWN
    return Trend.STEADY if len(set(line.bytes)) == 1 else Trend.VARIES


def kept_too(graph: HeapGraph, kept: LibraryRetention) -> tuple[KeptToo, ...]:
    """Other holders of most of the same storages."""
    most = sorted(kept.others(graph).items(), key=lambda item: -item[1])[:_OTHERS_SHOWN]
    return tuple(KeptToo(name, count) for name, count in most)
