"""Which groups grow, of tensors, of arrays and of grad nodes?"""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.grouping.arrays import with_arrays_for_storages
from leakscope.findings.grouping.candidates import candidates_among, candidates_of
from leakscope.findings.grouping.looks import judged_looks
from leakscope.findings.grouping.nodes import with_nodes_for_storages
from leakscope.findings.memory.balance import bytes_a_node
from leakscope.findings.stages.case import RankCase


def find_candidates(case: RankCase) -> RankCase:
    """Candidates: groups that grow, and garbage that comes back; of arrays only what something alive keeps gaining,
    and of grad nodes.
    """
    nodes = with_nodes_for_storages(case.rank, case.looks, bytes_a_node(case.balances))
    of_nodes = candidates_of(nodes, judged_looks(nodes, case.warmup)) if nodes else []
    arrays = with_arrays_for_storages(case.rank)
    growing = candidates_of(arrays, judged_looks(arrays, case.warmup)) if arrays else []
    return replace(
        case,
        candidates=tuple(candidates_among(case.rank, case.groups)),
        graphs=tuple(of_nodes),
        arrays=tuple(candidate for candidate in growing if not candidate.group.freed),
    )
