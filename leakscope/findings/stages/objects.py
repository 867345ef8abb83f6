"""What does something alive keep gaining that is neither a tensor nor an array?"""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.build import build_finding
from leakscope.findings.grouping.bounds import downgraded, is_open
from leakscope.findings.grouping.candidates import candidates_of
from leakscope.findings.grouping.looks import judged_looks
from leakscope.findings.grouping.objects import with_objects_for_storages
from leakscope.findings.kinds import Severity
from leakscope.findings.ledger import NO_GROWTH
from leakscope.findings.rules.hook_pileup import collects_hooks
from leakscope.findings.rules.object_growth import counted_series, of_objects
from leakscope.findings.stages.case import OpenCase, RankCase

_SMALL = 1 / 16
"""Share of the growth that makes a leak from which on one of objects is worth a note, chosen: a history of numbers is
not."""


def find_objects(case: RankCase) -> RankCase:
    """Findings of objects that are no tensors; what one cut lets go of with tensors is told with those."""
    rank = with_objects_for_storages(case.rank)
    if rank is None:
        return case
    looks = judged_looks(rank, case.warmup)
    # whatever is asked for, caches of Python and of libraries fill by a little
    thresholds = replace(case.thresholds, noise=NO_GROWTH)
    growing = (replace(c, is_of_container=True) for c in candidates_of(rank, looks) if not c.group.freed)
    candidates = [
        replace(c, counted=counted_series(c, looks))
        for c in growing
        if c.per_step >= _SMALL * thresholds.of_data() or collects_hooks(c)
    ]
    findings = [of_objects(build_finding(c, thresholds), c, looks) for c in candidates]
    told = [downgraded(finding, candidate) for finding, candidate in zip(findings, candidates, strict=True)]
    open_cases = [
        OpenCase(finding.fingerprint, finding.subject)
        for finding, candidate in zip(findings, candidates, strict=True)
        if is_open(finding, candidate) and finding.severity == Severity.LEAK
    ]
    return replace(
        case,
        arrays=(*case.arrays, *candidates),
        array_findings=(*case.array_findings, *told),
        array_open_cases=(*case.array_open_cases, *open_cases),
    )
