"""Which growth is of no group that grows: counted and no tensor's, or of ever new ones?"""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.graph_memory import with_graphs_behind
from leakscope.findings.kinds import Severity
from leakscope.findings.memory.device import native_findings
from leakscope.findings.memory.scattered import scattered_findings
from leakscope.findings.memory.unattributed import gap_findings
from leakscope.findings.stages.case import RankCase


def explain_gaps(case: RankCase) -> RankCase:
    """Growth that was counted and that no storage explains, and which findings' graphs it is the memory of."""
    rank, looks = case.rank, case.looks
    joined = native_findings(rank, looks, case.min_bytes)
    gaps = gap_findings(rank, looks, case.balances, case.warmup, case.min_bytes) if joined is None else joined
    findings = list(case.findings)
    if looks and looks[-1].counted_on == "cpu":  # nodes are in host memory
        findings, gaps = with_graphs_behind(findings, case.candidates, gaps, looks)
    told = zip(findings, case.candidates, strict=True)
    leaking = tuple(candidate for finding, candidate in told if finding.severity == Severity.LEAK)
    scattered = scattered_findings(rank, case.groups, case.candidates, case.warmup, case.min_bytes)
    return replace(case, findings=tuple(findings), gaps=tuple(gaps), scattered=tuple(scattered), leaking=leaking)
