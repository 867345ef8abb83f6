"""Numpy arrays, bytes and BytesIO that are kept: judged as tensors are, in the same graph, and told by the same
rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leakscope.findings.facts import Beside
from leakscope.findings.kinds import FreedBy, Severity
from leakscope.findings.model import Finding
from leakscope.graph.model import KINDS, HeapGraph, ObjectKind
from leakscope.record.model import Look, Rank

_ARRAY, _STORAGE, _OTHER = (KINDS.index(kind) for kind in (ObjectKind.ARRAY, ObjectKind.STORAGE, ObjectKind.NATIVE))


def array_bytes(look: Look) -> int:
    """Bytes of the living arrays that own memory."""
    graph = look.heap
    return int(graph.size[(graph.kind == _ARRAY) & (graph.freed == 0)].sum())


def with_arrays_for_storages(rank: Rank) -> Rank | None:
    """The rank as if arrays were what is looked for; None where they are as many bytes at every look, a data set's,
    say.
    """
    if len({array_bytes(look) for look in rank.looks}) <= 1:
        return None
    return replace(rank, looks=tuple(replace(look, heap=_of_arrays(look.heap)) for look in rank.looks))


def _of_arrays(graph: HeapGraph) -> HeapGraph:
    arrays, storages = graph.kind == _ARRAY, graph.kind == _STORAGE
    kind = np.where(arrays, _STORAGE, np.where(storages, _OTHER, graph.kind))
    return replace(graph, kind=kind, bytes=np.where(arrays, graph.size, 0), made_at={}, comm_uses={}, device={})


def of_arrays(finding: Finding, rank: int) -> Finding:
    """A finding made by the rules for tensors as one of arrays: none of its bytes are a storage's."""
    return replace(finding, noun=_noun(finding), count=0, storages={rank: ()})


def _noun(finding: Finding) -> str:
    kind = finding.trace[-1].type.rpartition(".")[2]
    return "numpy array" if kind == "ndarray" else f"{kind} object"


def beside_tensors(findings: Sequence[Finding], arrays: Finding) -> list[Finding]:
    """The findings of one rank with one of arrays: what a tensor's cut frees as well is said with that."""
    for place, finding in enumerate(findings):
        same = (
            finding.cut
            and arrays.cut
            and (finding.cut.written, finding.cut.where) == (arrays.cut.written, arrays.cut.where)
        )
        if (
            same
            and finding.freed_by == FreedBy.PROGRAM
            and (finding.severity == Severity.LEAK or arrays.severity == Severity.NOTE)
        ):
            beside = (*finding.beside, Beside(arrays.retained_bytes, arrays.noun))
            return [*findings[:place], replace(finding, beside=beside), *findings[place + 1 :]]
    return [*findings, arrays]
