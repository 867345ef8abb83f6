"""A small tensor (a logged loss) that keeps a graph and its activations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.facts import Facts
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import RuleName
from leakscope.findings.naming.expressions import is_lru_cache
from leakscope.findings.rules.rule import OwnRule, ToCut
from leakscope.graph.model import CACHED_ARGUMENTS, ObjectKind, ReferenceKind


class KeptOfGraph(StrEnum):
    """What the way to the bytes leads through: backward frees what was saved, never the leaves that a graph ends at."""

    SAVED = "saved"
    LEAVES = "leaves"
    GRAPH = "graph"


@dataclass(frozen=True)
class GraphFacts(Facts):
    """A tensor that keeps the graph that made it."""

    SUMMED = ("nodes", "nodes_per_step")

    holder: str
    of_gradient: bool
    """The graph hangs on the tensor's `.grad`, as after `backward(create_graph=True)`."""
    kept: KeptOfGraph
    saved: tuple[str, str] | None
    """(name, label of its grad node) of the first saved tensor on the way."""
    nodes: int = 0
    """Grad nodes that hang on it, where it is their memory that grows."""
    nodes_per_step: float = 0.0
    is_differentiated: bool = False
    """The source calls backward on what is kept, so that its graph is needed."""
    by_arguments: bool = False
    """The key of an `lru_cache` keeps it, which holds the arguments of a call."""
    gathers: bool = False
    """No container gains tensors: one tensor's graph goes back through all steps."""


def _applies(candidate: Candidate) -> bool:
    graph = candidate.reference_through(ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED)
    return candidate.group.freed == 0 and graph is not None


def _kept(candidate: Candidate) -> KeptOfGraph:
    if candidate.reference_through(ReferenceKind.SAVED) is not None:
        return KeptOfGraph.SAVED
    nodes = (o for o in candidate.objects if o.kind == ObjectKind.GRAD_NODE)
    return KeptOfGraph.LEAVES if any(o.name.endswith("AccumulateGrad") for o in nodes) else KeptOfGraph.GRAPH


def _by_arguments(candidate: Candidate) -> bool:
    """Whether an `lru_cache` on the path keeps it by a key, not as a result; one without a bound has a dict of them."""
    names = [r.name for r in candidate.references]
    caches = [k for k, o in enumerate(candidate.objects[: len(names)]) if is_lru_cache(o)]
    return any(names[k] == CACHED_ARGUMENTS or (k + 1 < len(names) and names[k + 1].startswith("key ")) for k in caches)


def _facts(candidate: Candidate, _cut: ToCut) -> GraphFacts:
    at = candidate.tensor_at
    saved = candidate.reference_through(ReferenceKind.SAVED)
    return GraphFacts(
        candidate.objects[at].label,
        of_gradient=any(r.name == ".grad" for r in candidate.references[at : at + 1]),
        kept=_kept(candidate),
        saved=(saved.name, candidate.graph.object(saved.holder).label) if saved else None,
        by_arguments=_by_arguments(candidate),
    )


RULE = OwnRule(
    RuleName.RETAINED_GRAPH,
    70,
    "A small tensor that keeps an autograd graph and its activations.",
    _applies,
    _facts,
)
