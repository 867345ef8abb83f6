"""Which findings are one?"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from leakscope.findings.comm.operations import with_contexts
from leakscope.findings.grouping.arrays import beside_tensors
from leakscope.findings.merge import merge_by_fingerprint, merge_findings, with_one_cut
from leakscope.findings.ownership.known_leaks import named_upstream
from leakscope.findings.stages.case import Case, RankCase


def merge_by_cut(case: RankCase) -> RankCase:
    """Merge, in one rank: what one cut lets go of is one finding, arrays with the tensors that go with them."""
    found = (*case.findings, *case.graph_findings)
    alike = with_one_cut(found)
    findings = [merge_findings([found[place] for place in places]) for places in alike]
    part_of = {
        found[place].fingerprint: finding.fingerprint
        for finding, places in zip(findings, alike, strict=True)
        for place in places
    }
    open_cases = tuple(
        replace(open_case, fingerprint=part_of[open_case.fingerprint])
        for open_case in case.open_cases
        if open_case.fingerprint in part_of  # a graph's may be that of tensors by now
    )
    became = tuple(part_of[finding.fingerprint] for finding in case.findings)
    arrays_became = []
    for arrays in case.array_findings:
        before, findings = findings, beside_tensors(findings, arrays)
        arrays_became.append(next(new.fingerprint for new, old in zip_longest(findings, before) if new is not old))
    return replace(
        case,
        findings=tuple(findings),
        became=became,
        arrays_became=tuple(arrays_became),
        open_cases=(*open_cases, *case.array_open_cases),
    )


def name_upstream(case: Case) -> Case:
    """Leaks that a library's developers know are the library's."""
    return replace(case, findings=tuple(map(named_upstream, case.findings)))


def merge_contexts(case: Case) -> Case:
    """Merge, over what open contexts keep: it is one leak on each rank."""
    return replace(case, findings=tuple(with_contexts(case.findings, case.run)))


def merge_ranks(case: Case) -> Case:
    """Merge, over the ranks: the same leak on several of them is one finding."""
    return replace(case, findings=tuple(merge_by_fingerprint(case.findings)))
