"""Turns a candidate into a finding: its rule, its cut, its trace, its facts."""

from __future__ import annotations

from leakscope.findings.candidates import Candidate, holds_of
from leakscope.findings.comm import p2p_buffers
from leakscope.findings.cut import best_cut, cycle_of, on_trace, subject, trace_of
from leakscope.findings.facts import FreedBy, Severity
from leakscope.findings.library import origin_of
from leakscope.findings.model import Cut, Finding, HeapId, Sighting, Unjudged
from leakscope.findings.naming import SEVERAL
from leakscope.findings.rules import facts_of
from leakscope.findings.rules.hook_pileup import collects_hooks
from leakscope.findings.rules.rule import ToCut
from leakscope.findings.thresholds import Thresholds, is_unintended
from leakscope.graph.model import IMMORTAL

_MAX_PLACES = 6
"""Maximum allocation sites named by a finding."""


def build_finding(candidate: Candidate, thresholds: Thresholds) -> Finding:
    """The finding of one candidate; the thresholds separate leaks from notes."""
    return build_with_problems(candidate, thresholds)[0]


def build_with_problems(candidate: Candidate, thresholds: Thresholds) -> tuple[Finding, tuple[Unjudged, ...]]:
    """The finding of one candidate, and the rules of other packages that failed."""
    cut, frees, references = best_cut(candidate)
    group, line = candidate.group, candidate.series
    written = _subject(candidate, references)
    each = tuple(reference.indexes[0] for reference in cut.references) if cut is not None else ()
    known = facts_of(candidate, ToCut(written, references, each))
    trace = trace_of(candidate, cut, frees)
    origin, library = origin_of(candidate, each)
    holds = "hooks" if collects_hooks(candidate) else holds_of(candidate)
    unintended = is_unintended(known.rule.is_unintended, origin, holds)
    least = thresholds.least(unintended, candidate.on_device)
    total = max(group.bytes, line.total)
    large = total >= line.floor(least) or candidate.recreated
    goes_on = candidate.per_step >= least and (candidate.recreated or line.goes_on(least))
    leak = goes_on and large and not known.facts.is_bounded
    collections = group.freed if group.freed > 0 else candidate.collected
    finding = Finding(
        rule=known.rule.name,
        facts=known.facts,
        fingerprint=group.key.fingerprint,
        severity=Severity.LEAK if leak else Severity.NOTE,
        freed_by=FreedBy.NEVER if group.freed == IMMORTAL else FreedBy.GC if collections else FreedBy.PROGRAM,
        retained_bytes=group.bytes,
        bytes_per_step=candidate.per_step,
        trace=trace,
        cut=cut and on_trace(cut, trace),
        least_per_step=least,
        origin=origin,
        library=library,
        collections=collections or None,
        made_at=_made_at(candidate),
        sightings=tuple(Sighting(candidate.rank, s, b) for s, b in zip(line.steps, line.bytes, strict=True) if b),
        cycle=cycle_of(candidate),
        count=len(group.storages),
        host_bytes=_on_host(candidate),
        subject=written,
        comm_buffers=None if known.rule.is_of_comm else p2p_buffers(candidate),
        storages={candidate.rank: group.storages},
        cut_in=_cut_in(candidate, cut),
    )
    return finding, tuple(Unjudged(broken.name, candidate.rank, broken.why) for broken in known.broken)


def _subject(candidate: Candidate, references: tuple[int, ...]) -> str:
    """What is to be cut, or the holder, as written in code."""
    if references:
        return subject(candidate, references[0])
    return SEVERAL if candidate.group.freed else "(no single reference)"


def _cut_in(candidate: Candidate, cut: Cut | None) -> frozenset[tuple[HeapId, int]]:
    heap = HeapId(candidate.rank, candidate.look)
    references = cut.references if cut is not None and candidate.look >= 0 else ()
    return frozenset((heap, index) for reference in references for index in reference.indexes)


def _on_host(candidate: Candidate) -> int:
    graph = candidate.graph
    return sum(int(graph.bytes[s]) for s in candidate.group.storages if s not in graph.device) if graph.device else 0


def _made_at(candidate: Candidate) -> tuple[str, ...]:
    made = candidate.made_at
    return tuple(sorted(made, key=lambda place: (-made[place], place)))[:_MAX_PLACES]
