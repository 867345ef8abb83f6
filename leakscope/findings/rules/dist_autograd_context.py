"""Distributed-autograd contexts left open: each keeps its gradients and the graph it sent, in torch's own container."""

from __future__ import annotations

from leakscope.findings.candidates import Candidate
from leakscope.findings.comm import CONTEXT_TYPE, buffers_of
from leakscope.findings.facts import OpenContextsFacts, RuleName
from leakscope.findings.rules.rule import OwnRule, ToCut


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == 0 and any(o.name.endswith(CONTEXT_TYPE) for o in candidate.before_tensor)


def _facts(candidate: Candidate, _cut: ToCut) -> OpenContextsFacts:
    graph = candidate.graph
    buffers = buffers_of(graph, candidate.group.storages).values()
    return OpenContextsFacts(
        count=sum(name.endswith(CONTEXT_TYPE) for name in (graph.strings[k] for k in graph.name.tolist())),
        issued_at=tuple(dict.fromkeys(c.issued_at for c in buffers if c.issued_at)),
    )


RULE = OwnRule(
    RuleName.DIST_AUTOGRAD_CONTEXT, 30, "A distributed autograd context that was left open.", _applies, _facts
)
