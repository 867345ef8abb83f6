"""Applies the rules to a candidate: its rule with the facts, its cut, its trace, its size."""

from __future__ import annotations

from leakscope.findings.candidates import Candidate, holds_of
from leakscope.findings.comm import p2p_buffers
from leakscope.findings.cut import best_cut, on_trace, subject, trace_of
from leakscope.findings.facts import HeldByCall, Origin, Severity
from leakscope.findings.judged import JudgedCandidate, Source
from leakscope.findings.library import origin_of
from leakscope.findings.model import HeapId, Unjudged
from leakscope.findings.naming import SEVERAL
from leakscope.findings.rules import facts_of
from leakscope.findings.rules.hook_pileup import collects_hooks
from leakscope.findings.rules.rule import ToCut
from leakscope.findings.thresholds import Thresholds, is_unintended


def judge_candidate(candidate: Candidate, thresholds: Thresholds, source: Source = Source.TENSORS) -> JudgedCandidate:
    """Apply the rules to one candidate; the thresholds separate leaks from notes."""
    cut, frees, references = best_cut(candidate)
    if references:
        written = subject(candidate, references[0])
    else:
        written = SEVERAL if candidate.group.freed else "(no single reference)"
    each = tuple(reference.indexes[0] for reference in cut.references) if cut is not None else ()
    known = facts_of(candidate, ToCut(written, references, each))
    trace = trace_of(candidate, cut, frees)
    origin, library = origin_of(candidate, each)
    holds = "hooks" if collects_hooks(candidate) else holds_of(candidate)
    unintended = is_unintended(known.rule.is_unintended, origin, holds)
    min_per_step = thresholds.for_finding(unintended, candidate.on_device)
    line, settled = candidate.series, candidate.settled_by
    large = candidate.recreated or max(candidate.group.bytes, line.total) >= line.floor(min_per_step)
    continues = candidate.per_step >= min_per_step and (candidate.recreated or line.continues(min_per_step))
    leak = continues and large and not known.facts.is_bounded
    if isinstance(settled, HeldByCall):
        origin, library = Origin.LIBRARY, settled.package
    heap = HeapId(candidate.rank, candidate.snapshot)
    instances = [i for r in cut.references for i in r.indexes] if cut is not None and candidate.snapshot >= 0 else []
    return JudgedCandidate(
        candidate=candidate,
        rule=known.rule.name,
        facts=known.facts,
        severity=Severity.LEAK if leak else Severity.NOTE,
        trace=trace,
        cut=cut and on_trace(cut, trace),
        subject=written,
        origin=origin,
        library=library,
        least_per_step=min_per_step,
        cut_in=frozenset((heap, index) for index in instances),
        source=source,
        settled_by=settled,
        too_large=candidate.too_large if settled is None and not candidate.group.freed else None,
        comm_buffers=None if known.rule.is_of_comm else p2p_buffers(candidate),
        problems=tuple(Unjudged(broken.name, candidate.rank, broken.why) for broken in known.broken),
    )
