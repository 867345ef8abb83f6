"""One rank keeps what its peers let go, measured by what its own stage should hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from leakscope.findings.build import build_finding
from leakscope.findings.categories import HOST, looks_after_steps
from leakscope.findings.facts import Facts
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import Group, group_storages
from leakscope.findings.grouping.growth import Series
from leakscope.findings.kinds import FreedBy, RuleName, Severity
from leakscope.findings.model import Finding, RankSummary, Sighting
from leakscope.findings.naming.trace import fingerprint
from leakscope.graph.model import HeapGraph, ObjectKind
from leakscope.record.model import Look, Rank, Run

NAME = RuleName.RANK_SKEW
_OWN = ("parameter", "gradient", "optimizer state", "buffer")
"""What a stage must hold: a stage with more layers may hold more."""
_FACTOR = 1.5
"""Times its peers' share that a rank must hold; chosen."""
_MIN_BYTES = 16 << 20
"""Bytes beyond its peers' share below which nothing is said; chosen."""


@dataclass(frozen=True)
class RankSkewFacts(Facts):
    """One rank holds more beside its model than its peers do."""

    rank: int
    held_bytes: int
    expected_bytes: int
    """What its peers' share would be."""
    largest: str
    """What holds most of it, as the user would write it; "" where nothing stands out."""


def skew_findings(run: Run, summaries: Mapping[int, RankSummary], findings: Sequence[Finding]) -> list[Finding]:
    """A note for each rank that holds far more beside its model than its peers do, each set against its own model.

    `findings` are the others: bytes that they name are no skew. Stages are compared at their last looks, so this
    says where to look, not that anything grows; it is never a verdict.
    """
    excess = {
        number: _beside(summary, _named(number, findings))
        for number, summary in summaries.items()
        if summary.categories
    }
    if len(excess) <= 1:
        return []
    models = {number: max(_model(summaries[number]), 1) for number in excess}
    skews = []
    for number, held in sorted(excess.items()):
        usual = median(excess[other] / models[other] for other in excess if other != number)
        expected = usual * models[number]
        over = int(held - expected)
        if held > _FACTOR * expected and over >= max(_MIN_BYTES, run.min_bytes):
            skews.append(_finding(run, number, over, held, int(expected)))
    return skews


def _holder(run: Run, rank: int) -> Finding | None:
    """What holds most of what a rank holds and its peers do not, or less of; the model is left out."""
    looks = {r.number: look for r in run.ranks if (look := _last_look(r)) is not None}
    if rank not in looks:
        return None
    look = looks[rank]
    groups = {number: {g.key: g for g in group_storages(there.heap) if not g.freed} for number, there in looks.items()}
    peers = [theirs for number, theirs in groups.items() if number != rank]
    over = {
        key: group.bytes - median(theirs[key].bytes if key in theirs else 0 for theirs in peers)
        for key, group in groups[rank].items()
        if not is_model(look.heap, group)
        and (not look.heap.device or any(s in look.heap.device for s in group.storages))
    }
    most = max(over, key=lambda key: over[key], default=None)
    if most is None or over[most] <= 0:
        return None
    group = groups[rank][most]
    made = tuple(look.heap.made_at[s] for s in group.storages if s in look.heap.made_at)
    alone = Candidate(rank, look.step, look.heap, group, Series((look.step,), (group.bytes,)), 0.0, False, made_at=made)
    return build_finding(alone, run.min_bytes)


def _last_look(rank: Rank) -> Look | None:
    looks = looks_after_steps(rank)
    return looks[-1] if looks else None


def is_model(graph: HeapGraph, group: Group) -> bool:
    """A parameter, what hangs on one, or an optimizer's state."""
    path = [group.start, *(int(graph.held[reference]) for reference in group.path)]
    return any(graph.object(index).kind in (ObjectKind.PARAMETER, ObjectKind.OPTIMIZER) for index in path)


def _model(summary: RankSummary) -> int:
    return sum(summary.categories.get(name, 0) for name in _OWN)


def _beside(summary: RankSummary, named: int) -> int:
    """Bytes at the last look that are not the stage's own model and that no other finding names."""
    everything = sum(size for name, size in summary.categories.items() if name not in (*_OWN, "leaked", HOST))
    leaked = summary.categories.get("leaked", 0)
    return max(everything + leaked - max(named, leaked), 0)


def _named(rank: int, findings: Sequence[Finding]) -> int:
    last = (
        max((s for s in f.sightings if s.rank == rank), key=lambda s: s.step, default=None)
        for f in findings
        if f.severity == Severity.LEAK
    )
    return sum(sighting.bytes for sighting in last if sighting is not None)


def _finding(run: Run, rank: int, over: int, held: int, expected: int) -> Finding:
    step = next((look.step for r in run.ranks if r.number == rank and (look := _last_look(r)) is not None), 0)
    holder = _holder(run, rank)
    largest = (holder.cut.written or holder.cut.reference) if holder is not None and holder.cut is not None else ""
    note = Finding(
        rule=NAME,
        facts=RankSkewFacts(rank, held, expected, largest),
        fingerprint=fingerprint((NAME,)),
        severity=Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=over,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        sightings=(Sighting(rank, step, over),),
    )
    if holder is None:
        return note
    own = fingerprint((NAME, holder.fingerprint))
    return replace(
        note, fingerprint=own, trace=holder.trace, cut=holder.cut, made_at=holder.made_at, count=holder.count
    )
