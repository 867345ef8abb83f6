"""Turns a candidate into a finding: its rule, its cut, its trace, its words."""

from __future__ import annotations

from collections import Counter

from leakscope.findings.comm.operations import hint
from leakscope.findings.cut.best_cut import best_cut, subject
from leakscope.findings.facts import Said
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.growth import LEAST_TOTAL_FACTOR
from leakscope.findings.model import Finding, FreedBy, RuleName, Severity, Sighting
from leakscope.findings.naming.candidate_trace import cycle_of, on_trace, trace_of
from leakscope.findings.naming.expressions import SEVERAL
from leakscope.findings.naming.see_also import places
from leakscope.findings.naming.trace import fingerprint
from leakscope.findings.ownership.library_cycles import origin_of
from leakscope.findings.rules import ORDER, step_growth
from leakscope.graph.model import IMMORTAL


def tell(found: Candidate, min_bytes: int) -> Finding:
    """The finding of one candidate; `min_bytes` a step make it a leak rather than a note."""
    rule = next(rule for rule in ORDER if rule.applies(found))
    cut, frees, references = best_cut(found)
    name = subject(found, references[0]) if references else SEVERAL if found.group.freed else "(no single reference)"
    group, line = found.group, found.series
    trace = trace_of(found, cut, frees)
    total = max(group.bytes, line.total)
    leak = found.per_step >= min_bytes and (total >= min_bytes * LEAST_TOTAL_FACTOR or found.recreated)
    settled = rule is step_growth and step_growth.bounded_by(found) is not None
    gc = group.freed > 0
    return Finding(
        rule=rule.NAME,
        facts=Said(
            title=rule.title(found, name),
            advice=rule.advice(found, name)
            + ("" if rule.NAME in (RuleName.P2P_BUFFER, RuleName.DIST_AUTOGRAD_CONTEXT) else hint(found)),
        ),
        fingerprint=fingerprint(_fingerprint_parts(found)),
        severity=Severity.LEAK if leak and not settled else Severity.NOTE,
        freed_by=FreedBy.NEVER if group.freed == IMMORTAL else FreedBy.GC if gc else FreedBy.PROGRAM,
        retained_bytes=group.bytes,
        bytes_per_step=found.per_step,
        trace=trace,
        cut=cut and on_trace(cut, trace),
        origin=origin_of(found),
        collections=group.freed if gc else None,
        made_at=_made_at(found),
        sightings=tuple(Sighting(found.rank, s, b) for s, b in zip(line.steps, line.bytes, strict=True) if b),
        see=places(rule.cure(found)) if hasattr(rule, "cure") else (),
        cycle=cycle_of(found),
        count=len(group.storages),
        host_bytes=_on_host(found),
        settled=settled,
        storages={found.rank: group.storages},
    )


def _fingerprint_parts(found: Candidate) -> tuple[str, ...]:
    return found.group.key


def _on_host(found: Candidate) -> int:
    graph = found.graph
    return sum(int(graph.bytes[s]) for s in found.group.storages if s not in graph.device) if graph.device else 0


def _made_at(found: Candidate) -> tuple[str, ...]:
    times = Counter(found.made_at)
    return tuple(sorted(times, key=lambda place: -times[place]))[:6]
