"""Distributed-autograd contexts left open: each keeps its gradients and the graph it sent, in torch's own container."""

from __future__ import annotations

from leakscope.findings.comm.operations import buffers_of
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import RuleName
from leakscope.graph.model import Object

NAME = RuleName.DIST_AUTOGRAD_CONTEXT


def _context(found: Candidate) -> Object | None:
    return next((o for o in found.before_tensor if o.name.endswith("DistAutogradContext")), None)


def applies(found: Candidate) -> bool:
    return found.group.freed == 0 and _context(found) is not None


def _count(found: Candidate) -> int:
    graph = found.graph
    return sum(name.endswith("DistAutogradContext") for name in (graph.strings[k] for k in graph.name.tolist()))


def title(found: Candidate, cut: str) -> str:
    opened = dict.fromkeys(c.issued_at for c in buffers_of(found.graph, found.group.storages).values() if c.issued_at)
    where = f", opened at {', '.join(list(opened)[:3])}" if opened else ""
    count = _count(found)
    return f"{count} distributed-autograd context{'s' if count != 1 else ''} (DistAutogradContext) left open{where}"


def advice(found: Candidate, cut: str) -> str:
    return (
        "Enter the context with `with torch.distributed.autograd.context() as context_id:` around forward, backward and the reading "
        "of the gradients: leaving it, also by an exception, is the only thing that releases it, on every worker it has talked to. "
        "It lives in torch's own container in C++; gc neither sees nor frees it."
    )
