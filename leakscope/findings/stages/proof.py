"""What went free when a forked copy of the process made the cut?"""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.facts import OnlyTensorsFreed
from leakscope.findings.model import Finding
from leakscope.findings.stages.case import Case
from leakscope.record.model import Run


def add_proofs(case: Case) -> Case:
    """What forked copies of the ranks found of each cut."""
    return replace(case, findings=tuple(with_proof(finding, case.run) for finding in case.findings))


def with_proof(finding: Finding, run: Run) -> Finding:
    """The finding with what its cut really freed, or the reason why it was not tried."""
    if finding.cut is None:
        return finding
    answers = [rank.proved[finding.fingerprint] for rank in run.ranks if finding.fingerprint in rank.proved]
    answered = {rank.number for rank in run.ranks if finding.fingerprint in rank.proved}
    sizes = [a for a in answers if isinstance(a, int)]
    reasons = [a for a in answers if isinstance(a, str)]
    if sizes and finding.counted_bytes:
        return replace(finding, cut=replace(finding.cut, unproved=OnlyTensorsFreed(sum(sizes))))
    if sizes and not reasons and answered >= set(finding.ranks):
        return replace(finding, cut=replace(finding.cut, proved_bytes=sum(sizes)))
    return replace(finding, cut=replace(finding.cut, unproved=reasons[0])) if reasons else finding
