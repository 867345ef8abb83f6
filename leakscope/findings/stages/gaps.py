"""Which growth is of no group that grows: counted and no tensor's, or of ever new ones?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.graph_memory import with_graphs
from leakscope.findings.kinds import Severity
from leakscope.findings.memory.balance import Balance, bytes_a_node
from leakscope.findings.memory.device import native_findings
from leakscope.findings.memory.scattered import scattered_findings
from leakscope.findings.memory.unattributed import gap_findings
from leakscope.findings.stages.case import RankCase


def explain_gaps(case: RankCase) -> RankCase:
    """Growth that was counted and that no storage explains, and which findings' graphs it is the memory of."""
    rank, looks = case.rank, case.looks
    joined = native_findings(rank, looks, case.thresholds.counted)
    balances = _without_nodes(case.balances) if case.graphs else case.balances
    gaps = gap_findings(rank, looks, balances, case.warmup, case.thresholds.counted) if joined is None else joined
    findings, graphs = with_graphs(case.findings, case.candidates, case.graph_findings, case.graphs)
    told = zip(findings, case.candidates, strict=True)
    leaking = tuple(candidate for finding, candidate in told if finding.severity == Severity.LEAK)
    scattered = scattered_findings(rank, case.groups, case.candidates, case.warmup, case.thresholds)
    return replace(
        case,
        findings=tuple(findings),
        graph_findings=tuple(graphs),
        gaps=tuple(gaps),
        scattered=tuple(scattered),
        leaking=leaking,
    )


def _without_nodes(balances: Sequence[Balance]) -> list[Balance]:
    """What was counted without the memory of grad nodes, which is told with the tensors that keep them."""
    each = bytes_a_node(balances)
    return [b if b.counted is None else replace(b, counted=b.counted - each * b.nodes) for b in balances]
