"""What is found otherwise than by the growth of one group, beside what grows?"""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.comm.operations import beyond_contexts, context_findings, dropped_work_findings
from leakscope.findings.compare_ranks import skew_findings
from leakscope.findings.counters import step_times
from leakscope.findings.memory.allocator import allocator_findings
from leakscope.findings.memory.worker_copies import copies_findings
from leakscope.findings.memory.worker_growth import worker_growth_findings
from leakscope.findings.model import Finding, Unjudged
from leakscope.findings.ownership.library_retention import kept_by_library
from leakscope.findings.peak.late_release import late_release_findings, late_release_unjudged
from leakscope.findings.peak.untouched import idle_findings
from leakscope.findings.rules.hook_pileup import HookFacts
from leakscope.findings.rules.rule import rules_of_others
from leakscope.findings.stages.case import Case, RankCase


def add_memory_of_rank(case: RankCase) -> RankCase:
    """What the allocator, libraries and the peak of a watched step tell of one rank."""
    kept = kept_by_library(case.rank, case.looks, case.findings, case.thresholds)
    return replace(
        case,
        findings=(
            *(_timed(finding, case) for finding in case.findings),
            *beyond_contexts(case.gaps, case.findings),
            *case.scattered,
            *allocator_findings(case.rank, case.looks),
            *kept.values(),
            *late_release_findings(case.rank, case.thresholds.counted, kept),
            *idle_findings(case.rank, case.thresholds.counted, case.findings),
            *worker_growth_findings(case.rank, case.thresholds.counted),
            *copies_findings(case.rank, case.thresholds.counted),
        ),
        unjudged=(*case.unjudged, *late_release_unjudged(case.rank)),
    )


def _timed(finding: Finding, case: RankCase) -> Finding:
    """A finding of hooks with how much longer the steps took at the end."""
    if not isinstance(finding.facts, HookFacts):
        return finding
    return replace(finding, facts=replace(finding.facts, step_seconds=step_times(case.rank, case.warmup)))


def gather(case: Case) -> Case:
    """What is known of all ranks, and what the operations between them tell."""
    first = min((rank.number for rank in case.run.ranks), default=0)
    unloaded = (Unjudged(broken.name, first, broken.why) for broken in rules_of_others()[1])
    of_ranks = [finding for rank in case.ranks for finding in rank.findings]
    return replace(
        case,
        findings=(*of_ranks, *dropped_work_findings(case.run), *context_findings(case.run)),
        summaries={rank.number: rank.summary for rank in case.ranks},
        unjudged=(*(problem for rank in case.ranks for problem in rank.unjudged), *unloaded),
    )


def compare_ranks(case: Case) -> Case:
    """What one rank keeps and its peers do not."""
    held = {rank.number: rank.held for rank in case.ranks}
    skewed = skew_findings(case.run, case.summaries, case.findings, held)
    return replace(case, findings=(*case.findings, *skewed))
