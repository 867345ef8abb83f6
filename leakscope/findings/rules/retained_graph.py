"""A small tensor (a logged loss) that keeps a graph and its activations."""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import RuleName
from leakscope.graph.model import ObjectKind, ReferenceKind

NAME = RuleName.RETAINED_GRAPH


def applies(found: Candidate) -> bool:
    return found.group.freed == 0 and found.reference_through(ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED) is not None


def _holder(found: Candidate) -> str:
    return found.objects[found.tensor_at].label


def _is_gradient(found: Candidate) -> bool:
    """Whether the graph hangs on the tensor's `.grad`, as after `backward(create_graph=True)`."""
    return any(r.name == ".grad" for r in found.references[found.tensor_at : found.tensor_at + 1])


def title(found: Candidate, cut: str) -> str:
    if _is_gradient(found):
        return f"the .grad of {cut} has a grad_fn and keeps {_kept(found)}"
    return f"{_holder(found)} with a grad_fn in {cut} keeps {_kept(found)}"


def _kept(found: Candidate) -> str:
    """What the way to the bytes leads through: backward frees what was saved, never the leaves that a graph ends at."""
    if found.reference_through(ReferenceKind.SAVED) is not None:
        return "its whole graph and the activations saved for it"
    if any(o.kind == ObjectKind.GRAD_NODE and o.name.endswith("AccumulateGrad") for o in found.objects):
        return "its graph and the leaf tensors (and their .grad) that the graph ends at"
    return "its whole graph"


def advice(found: Candidate, cut: str) -> str:
    if _is_gradient(found):
        return (
            f"Set the .grad of {cut}, and of every other parameter that no optimizer zeroes, to None in each step: backward(create_graph=True) "
            "gives gradients a graph of their own, and what is added to them goes on adding to it. torch.autograd.grad stores none."
        )
    saved = found.reference_through(ReferenceKind.SAVED)
    what = f" (through {saved.name} of {found.graph.object(saved.holder).label})" if saved else ""
    return f"Store {cut} detached: use .item() for a number or .detach() for a tensor before keeping it{what}."
