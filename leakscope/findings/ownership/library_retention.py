"""What does a library keep from step to step, though no step needs it? Named once for each holder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakscope.findings.cut.trace import on_trace
from leakscope.findings.facts import Upstream
from leakscope.findings.grouping.growth import MIN_LOOKS, Series, series
from leakscope.findings.kinds import FreedBy, Origin, Severity
from leakscope.findings.model import Cut, CutReference, Finding, Sighting
from leakscope.findings.naming.expressions import as_part_of_holder
from leakscope.findings.naming.trace import fingerprint
from leakscope.findings.ownership.facts import Course, KeptToo, RetentionFacts
from leakscope.findings.ownership.known_leaks import KNOWN, TYPES, KnownLeak
from leakscope.findings.ownership.library_paths import Hold, Holds, freed_by, holds_of, whole_trace
from leakscope.findings.thresholds import Thresholds
from leakscope.graph.model import HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.paths import paths_from_roots
from leakscope.record.kinds import Occasion
from leakscope.record.model import Look, Rank

_OTHERS_SHOWN = 3
"""Others who keep the same: chosen, for a sentence each."""


@dataclass(frozen=True)
class LibraryRetention:
    """Storages of one look that one known holder keeps, each with all that keeps it."""

    known: KnownLeak
    holds: Mapping[int, Holds]
    """By storage."""

    def of_its_own(self, storage: int) -> list[Hold]:
        """Where this holder itself keeps a storage."""
        return [hold for hold in self.holds[storage].known if hold.known == self.known]

    def frees(self, graph: HeapGraph) -> int:
        """Bytes that would be freed if this holder alone let go."""
        return freed_by(graph, (hold for storage in self.holds for hold in self.of_its_own(storage)), self.holds)

    def others(self, graph: HeapGraph) -> dict[str, int]:
        """Who else keeps how many of the storages."""
        counts: dict[str, int] = defaultdict(int)
        for holds in self.holds.values():
            names = [hold.known.holder for hold in holds.known if hold.known != self.known]
            names += ["a running call of the library"] * holds.running + ["native code"] * holds.native
            for name in dict.fromkeys([*names, *(_holder_text(graph, r) for r in holds.others[:2])]):
                counts[name] += 1
        return dict(counts)


def by_holder(graph: HeapGraph, storages: Sequence[int], alone: bool) -> list[LibraryRetention]:
    """Those of the storages that known holders keep; one that several keep belongs to the first of `KNOWN`.

    `alone`: only what neither the script nor native code keeps too; else only what no grad graph stands before.
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
    """`losses in train()`, whether train is a function that runs or a generator that waits."""
    r = graph.reference(reference)
    holder = graph.object(r.holder)
    in_function = r.kind == ReferenceKind.LOCAL and holder.kind in (ObjectKind.FRAME, ObjectKind.GENERATOR)
    return f"{r.name.removeprefix('local ')} in {holder.name}()" if in_function else as_part_of_holder(graph, reference)


def kept_by_library(
    rank: Rank, looks: Sequence[Look], growing: Sequence[Finding], thresholds: Thresholds
) -> dict[str, Finding]:
    """Holder to finding, for each holder that keeps something at the last look; a note unless it grows.

    `growing` are the findings of this rank that grow: what they name is not told again.
    """
    if len(looks) <= 1 or looks[-1].occasion == Occasion.BLOCK:
        return {}
    named = {index for finding in growing for index in finding.storages.get(rank.number, ())}
    last = looks[-1]
    graph = last.heap
    kept = by_holder(graph, [s for s in graph.storages.tolist() if graph.freed[s] == 0 and s not in named], alone=False)
    sizes: dict[str, dict[int, int]] = defaultdict(dict)
    for look in looks[:-1] if kept else ():
        alive = [s for s in look.heap.storages.tolist() if look.heap.freed[s] == 0]
        for retention in by_holder(look.heap, alive, alone=False):
            sizes[retention.known.holder][look.step] = _bytes(look.heap, retention)
    findings = {}
    for retention in kept:
        size = _bytes(graph, retention)
        if (
            size < max(thresholds.counted, 1) or not sizes[retention.known.holder]
        ):  # seen once, it may go when the next step begins
            continue
        line = series([look.step for look in looks], {**sizes[retention.known.holder], last.step: size})
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
        severity=Severity.LEAK if grows and line.is_leak(thresholds.of_data()) else Severity.NOTE,
        least_per_step=thresholds.of_data(),
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=line.per_step if grows else 0.0,
        trace=trace,
        cut=on_trace(Cut((named,), frees), trace) if frees else None,
        origin=Origin.LIBRARY,
        library="torch",
        upstream=Upstream(known.issue, known.what),
        made_at=tuple(dict.fromkeys(graph.made_at[s] for s in kept.holds if s in graph.made_at))[:6],
        sightings=tuple(Sighting(rank.number, s, b) for s, b in zip(line.steps, line.bytes, strict=True) if b),
        count=count,
        storages={rank.number: tuple(kept.holds)},
    )


def _course(line: Series) -> Course:
    if line.grew_lately:
        return Course.GROWS
    if len(line.bytes) < MIN_LOOKS:
        return Course.UNKNOWN
    return Course.STEADY if len(set(line.bytes)) == 1 else Course.VARIES


def kept_too(graph: HeapGraph, kept: LibraryRetention) -> tuple[KeptToo, ...]:
    """Who else keeps most of the same storages."""
    most = sorted(kept.others(graph).items(), key=lambda item: -item[1])[:_OTHERS_SHOWN]
    return tuple(KeptToo(name, count) for name, count in most)
