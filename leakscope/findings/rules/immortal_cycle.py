"""Cycles through C++ references that gc cannot see: never freed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.facts import Facts
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import RuleName
from leakscope.findings.rules.rule import OwnRule, ToCut
from leakscope.findings.rules.tensor_cycle import CutAt, cycle_of, kinds_of_cut
from leakscope.graph.model import IMMORTAL, HeapGraph, ObjectKind, Reference, ReferenceKind

_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER)


class ClosedBy(StrEnum):
    """What closes an immortal cycle."""

    METADATA = "metadata"
    GRADIENT = "gradient"
    """A gradient that has a graph, on its own parameter."""
    PACK_HOOK = "pack hook"
    """A pack hook that returns the tensor itself."""
    HOOK = "hook"
    OTHER = "other"


@dataclass(frozen=True)
class ImmortalFacts(Facts):
    """A cycle that gc never frees."""

    closed_by: ClosedBy
    hidden: tuple[str, str] | None
    """(name, label of its holder) of the C++ reference that gc does not follow; None where it is a tensor's own to its
    grad node.
    """
    cut_at: tuple[CutAt, ...] = ()
    """What each of the references to cut is."""


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == IMMORTAL


def _hidden(candidate: Candidate) -> tuple[str, str] | None:
    """The C++ reference on the cycle that gc does not follow."""
    cycle = cycle_of(candidate)
    # what the user's code put there is named before autograd's own
    for kinds in ((ReferenceKind.HOOK, ReferenceKind.SAVED), (ReferenceKind.GRAD_GRAPH,)):
        for reference in cycle:
            holder = candidate.graph.object(reference.holder)
            if holder.kind == ObjectKind.GRAD_NODE and reference.kind in kinds:
                return reference.name, holder.label
    return None


def _is_packed(graph: HeapGraph, saved: Reference) -> bool:
    """Whether a pack hook made a saved tensor, which is that tensor itself: its node then holds the unpack hook too.

    Torch saves the output of an operator without its graph, so what it saves by itself closes no cycle alone.
    """
    if saved.kind != ReferenceKind.SAVED or graph.object(saved.held).kind not in _TENSORS:
        return False
    return any(graph.reference(r).name == f"unpack hook of {saved.name}" for r in graph.out_of(saved.holder).tolist())


def _closed_by(candidate: Candidate) -> ClosedBy:
    cycle = cycle_of(candidate)
    if any(r.name == "metadata" for r in cycle):
        return ClosedBy.METADATA
    if any(r.name == ".grad" for r in cycle):
        return ClosedBy.GRADIENT
    if any(_is_packed(candidate.graph, r) for r in cycle):
        return ClosedBy.PACK_HOOK
    return ClosedBy.HOOK if any(r.kind == ReferenceKind.HOOK for r in cycle) else ClosedBy.OTHER


def _facts(candidate: Candidate, cut: ToCut) -> ImmortalFacts:
    return ImmortalFacts(_closed_by(candidate), _hidden(candidate), kinds_of_cut(candidate, cut.each))


RULE = OwnRule(
    RuleName.IMMORTAL_CYCLE,
    10,
    "Tensors held by a cycle through C++ references that gc never frees.",
    _applies,
    _facts,
)
