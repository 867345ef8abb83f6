"""Which findings are one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, zip_longest

from leakscope.findings.comm.operations import with_contexts
from leakscope.findings.grouping.arrays import beside_tensors
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import RuleName
from leakscope.findings.merge import by_weight, merge_by_fingerprint, merge_findings, with_one_cut
from leakscope.findings.model import Finding
from leakscope.findings.ownership.known_leaks import named_upstream
from leakscope.findings.rules.hook_pileup import is_of_one_like
from leakscope.findings.stages.case import Case, OpenCase, RankCase


def merge_by_cut(case: RankCase) -> RankCase:
    """Merge, in one rank: what one cut lets go of is one finding, arrays with the tensors that go with them."""
    found = (*case.findings, *case.graph_findings)
    alike = _with_hooks_of_one(with_one_cut(found), found, (*case.candidates, *case.graphs))
    findings = [_merged(found, places) for places in alike]
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
    arrays_became = [""] * len(case.array_findings)
    each = [(place,) for place in range(len(case.array_findings))]
    for places in _with_hooks_of_one(each, case.array_findings, case.arrays):
        before, findings = findings, beside_tensors(findings, _merged(case.array_findings, places))
        name = next(new.fingerprint for new, old in zip_longest(findings, before) if new is not old)
        for place in places:
            arrays_became[place] = name
    return replace(
        case,
        findings=tuple(findings),
        became=became,
        arrays_became=tuple(arrays_became),
        open_cases=(*open_cases, *(_renamed(one, case.array_findings, arrays_became) for one in case.array_open_cases)),
    )


def _with_hooks_of_one(
    alike: Sequence[tuple[int, ...]], findings: Sequence[Finding], candidates: Sequence[Candidate]
) -> list[tuple[int, ...]]:
    """Positions of findings that are one, those of hooks of one of several modules among those of the others."""
    joined = [list(places) for places in alike]
    of_hooks = [places for places in joined if findings[places[0]].rule == RuleName.HOOK_PILEUP]
    for places, others in permutations(of_hooks, 2):
        if not (places and others):
            continue
        one, other = places[0], others[0]
        same = (findings[one].severity, findings[one].noun) == (findings[other].severity, findings[other].noun)
        if same and is_of_one_like(candidates[one], candidates[other]):
            others.extend(places)
            places.clear()
    return [tuple(places) for places in joined if places]


def _merged(findings: Sequence[Finding], places: Sequence[int]) -> Finding:
    """Findings that are one; of equal kind the first of them lends its words."""
    first = findings[places[0]]
    return merge_findings(
        [findings[place] for place in places], lambda finding: (finding is not first, by_weight(finding))
    )


def _renamed(one: OpenCase, findings: Sequence[Finding], became: Sequence[str]) -> OpenCase:
    """An open case of arrays with the fingerprint of the finding that its own has become part of."""
    names = {finding.fingerprint: name for finding, name in zip(findings, became, strict=True)}
    return replace(one, fingerprint=names.get(one.fingerprint, one.fingerprint))


def name_upstream(case: Case) -> Case:
    """Leaks that a library's developers know are the library's."""
    return replace(case, findings=tuple(map(named_upstream, case.findings)))


def merge_contexts(case: Case) -> Case:
    """Merge, over what open contexts keep: it is one leak on each rank."""
    return replace(case, findings=tuple(with_contexts(case.findings, case.run)))


def merge_ranks(case: Case) -> Case:
    """Merge, over the ranks: the same leak on several of them is one finding."""
    return replace(case, findings=tuple(merge_by_fingerprint(case.findings)))
