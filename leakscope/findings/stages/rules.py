"""Which rule does each candidate belong to, and what speaks against a leak?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.build import build_with_problems
from leakscope.findings.graph_memory import of_nodes
from leakscope.findings.grouping.arrays import of_arrays
from leakscope.findings.grouping.bounds import downgraded, is_open
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import Origin
from leakscope.findings.merge import weighed_together
from leakscope.findings.model import Finding
from leakscope.findings.source.accumulating import is_made_from_itself, variable_of
from leakscope.findings.stages.case import OpenCase, RankCase


def apply_rules(case: RankCase) -> RankCase:
    """Rules: a finding for each candidate, a note where something speaks against a leak."""
    candidates = tuple(_unless_accumulated(candidate, case) for candidate in case.candidates)
    case = replace(case, candidates=candidates)
    built = [build_with_problems(candidate, case.thresholds) for candidate in case.candidates]
    arrays = [build_with_problems(candidate, case.thresholds) for candidate in case.arrays]
    of_tensors = [finding for finding, _ in built]
    graphs = [build_with_problems(candidate, case.thresholds) for candidate in case.graphs]
    on_accelerator = any(look.heap.device for look in case.looks)
    of_graphs = [of_nodes(f, of, on_accelerator) for (f, _), of in zip(graphs, case.graphs, strict=True)]
    weighed = weighed_together((*of_tensors, *of_graphs), (*case.candidates, *case.graphs), case.thresholds)
    of_tensors, of_graphs = weighed[: len(of_tensors)], weighed[len(of_tensors) :]
    others = [of_arrays(finding, case.rank.number) for finding, _ in arrays]
    problems = [problem for _, problems in (*built, *arrays, *graphs) for problem in problems]
    return replace(
        case,
        findings=_downgraded(of_tensors, case.candidates),
        graph_findings=_downgraded(of_graphs, case.graphs),
        open_cases=(*_open_cases(of_tensors, case.candidates), *_open_cases(of_graphs, case.graphs)),
        array_findings=_downgraded(others, case.arrays),
        array_open_cases=_open_cases(others, case.arrays),
        unjudged=(*case.unjudged, *dict.fromkeys(problems)),
    )


def _unless_accumulated(candidate: Candidate, case: RankCase) -> Candidate:
    """A candidate that follows the input, unless the source makes it from its own previous value."""
    if candidate.follows is None:
        return candidate
    references = [reference.name for reference in candidate.references[: candidate.tensor_at]]
    itself = is_made_from_itself(case.sources, variable_of(references))
    return replace(candidate, follows=None) if itself else candidate


def _downgraded(findings: Sequence[Finding], candidates: Sequence[Candidate]) -> tuple[Finding, ...]:
    return tuple(downgraded(finding, candidate) for finding, candidate in zip(findings, candidates, strict=True))


def _open_cases(findings: Sequence[Finding], candidates: Sequence[Candidate]) -> tuple[OpenCase, ...]:
    """Those of the findings of which it cannot be said whether they are leaks."""
    return tuple(
        OpenCase(finding.fingerprint, finding.cut.written if finding.cut else finding.subject)
        for finding, candidate in zip(findings, candidates, strict=True)
        if is_open(finding, candidate) and finding.origin == Origin.APPLICATION
    )
