"""Which groups grow, of tensors and of arrays?"""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.grouping.arrays import with_arrays_for_storages
from leakscope.findings.grouping.candidates import candidates_among, candidates_of
from leakscope.findings.grouping.looks import judged_looks
from leakscope.findings.stages.case import RankCase


def find_candidates(case: RankCase) -> RankCase:
    """Candidates: groups that grow, and garbage that comes back; of arrays only what something alive keeps gaining."""
    arrays = with_arrays_for_storages(case.rank)
    growing = candidates_of(arrays, judged_looks(arrays, case.warmup)) if arrays else []
    return replace(
        case,
        candidates=tuple(candidates_among(case.rank, case.groups)),
        arrays=tuple(candidate for candidate in growing if not candidate.group.freed),
    )
