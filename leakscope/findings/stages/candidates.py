"""Which groups grow, of tensors, of arrays and of grad nodes?"""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.counters import counted_rate
from leakscope.findings.grouping.arrays import with_arrays_for_storages
from leakscope.findings.grouping.candidates import candidates_among, candidates_of
from leakscope.findings.grouping.looks import judged_looks
from leakscope.findings.grouping.nodes import with_nodes_for_storages
from leakscope.findings.memory.balance import bytes_a_node
from leakscope.findings.stages.case import RankCase

_COUNTED = 0.5
"""Share of the rate of grad nodes that the counters of all steps have to show where no container was seen to gain them.
The graph of one step that is larger at each snapshot by chance adds 0, graphs that are
kept about their rate.
"""


def find_candidates(case: RankCase) -> RankCase:
    """Candidates: groups that grow, and garbage that comes back; of arrays only what something alive keeps gaining,
    and of grad nodes.
    """
    nodes = with_nodes_for_storages(case.rank, case.looks, bytes_a_node(case.balances))
    of_nodes = candidates_of(nodes, judged_looks(nodes, case.warmup)) if nodes else []
    counted = counted_rate(case.rank, case.warmup) if of_nodes else None
    arrays = with_arrays_for_storages(case.rank)
    growing = candidates_of(arrays, judged_looks(arrays, case.warmup)) if arrays else []
    return replace(
        case,
        candidates=tuple(candidates_among(case.rank, case.groups)),
        # The graph of one step, larger at each look by chance, is let go of with its step: no counter goes up. What a
        # container gains is attributed, whatever else moves the counters meanwhile.
        graphs=tuple(c for c in of_nodes if counted is None or c.gaining >= 0 or counted >= _COUNTED * c.per_step),
        arrays=tuple(candidate for candidate in growing if not candidate.group.freed),
    )
