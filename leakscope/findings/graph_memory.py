"""Is the memory that no tensor owns that of autograd graphs, kept by tensors which hang on them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from leakscope.findings.cut.best_cut import best_cut
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import Severity
from leakscope.findings.merge import merge_findings
from leakscope.findings.model import Finding
from leakscope.graph.model import KINDS, ObjectKind
from leakscope.graph.retained import freed_without
from leakscope.record.model import Look

_NODE = KINDS.index(ObjectKind.GRAD_NODE)
_OF_A_NODE = range(64, 1024)
"""Bytes that a grad node takes with what it keeps besides tensors: 380 (linear, convolution) to 600 (a chain of ReLU)
were counted.
"""
_NODES_THRESHOLD = 0.9
"""Share of the grad nodes that came meanwhile which a cut must free for them to be its own; chosen."""


def with_graphs_behind(
    findings: Sequence[Finding], candidates: Sequence[Candidate], gaps: Sequence[Finding], looks: Sequence[Look]
) -> tuple[list[Finding], list[Finding]]:
    """The findings and the gaps, with each gap moved to the finding whose cut frees the grad nodes that came meanwhile.

    `losses.append(loss)` after its backward keeps four bytes of storage, and a node for each operation of the step.
    """
    moved, left = list(findings), []
    for gap in gaps:
        place = next(_frees_the_nodes(candidates, gap, looks), None) if gap.severity == Severity.LEAK else None
        if place is None:
            left.append(gap)
        else:
            moved[place] = _with(moved[place], gap)
    return moved, left


def _frees_the_nodes(candidates: Sequence[Candidate], gap: Finding, looks: Sequence[Look]) -> Iterator[int]:
    """Positions of the candidates whose cut frees as many grad nodes as have come while the gap grew."""
    nodes = [
        (look.heap.kind == _NODE).sum()
        for look in looks
        if look.step in (gap.sightings[0].step, gap.sightings[-1].step)
    ]
    came = int(nodes[-1] - nodes[0])
    if came <= 0 or int(gap.retained_bytes / came) not in _OF_A_NODE:
        return
    for place, candidate in enumerate(candidates):
        if candidate.group.freed == 0 and candidate.graph is looks[-1].heap:
            references = np.asarray(best_cut(candidate)[2], dtype=np.int64)
            gone = freed_without(candidate.graph, references)
            if (candidate.graph.kind[gone] == _NODE).sum() >= _NODES_THRESHOLD * came:
                yield place


def _with(finding: Finding, gap: Finding) -> Finding:
    """The finding with what the allocator counted beside its tensors."""
    steps = {sighting.step for sighting in finding.sightings}
    counted = replace(
        finding,
        severity=Severity.NOTE if finding.settled else Severity.LEAK,
        retained_bytes=gap.retained_bytes,
        bytes_per_step=gap.bytes_per_step,
        count=0,
        host_bytes=0,
        counted_bytes=gap.retained_bytes,
        made_at=(),
        sightings=tuple(sighting for sighting in gap.sightings if sighting.step in steps),
        storages={},
        cut=finding.cut and replace(finding.cut, frees_bytes=gap.retained_bytes),
    )
    return replace(merge_findings((finding, counted)), keeps_graphs=True)
