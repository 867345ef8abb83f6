"""How much of what is held did the calls that are judged add? What was there before them is not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.kinds import FreedBy
from leakscope.findings.model import Finding, Findings
from leakscope.findings.why import Reason, Why
from leakscope.record.model import Step


def only_added(findings: Findings, before: int, steps: Sequence[Step]) -> Findings:
    """Each finding's bytes without those that were there at the look `before` the first judged call.

    `steps` are the judged calls: garbage of before is gone where gc has freed all garbage meanwhile.
    """
    collected = any(collection.is_full for step in steps for collection in step.collections)
    added = tuple(_added(finding, before, collected) for finding in findings.findings)
    leaks = [finding for finding in added if finding.is_leak]
    why = findings.why
    if isinstance(why, Why) and why.reason == Reason.LEAKS:
        why = replace(why, bytes=sum(finding.retained_bytes for finding in leaks))
    return replace(findings, findings=added, why=why)


def _added(finding: Finding, before: int, collected: bool) -> Finding:
    if collected and finding.freed_by == FreedBy.GC:
        return finding
    at = {seen.step: seen.bytes for seen in finding.sightings}
    there = min(at.values(), default=0) if before in at else 0
    if not 0 < there < finding.retained_bytes:
        return finding
    added = finding.retained_bytes - there
    return replace(
        finding, retained_bytes=added, before_bytes=there, count=0, host_bytes=min(finding.host_bytes, added)
    )
