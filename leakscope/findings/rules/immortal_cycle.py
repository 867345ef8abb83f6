"""Cycles through C++ references that gc cannot see: never freed."""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import RuleName
from leakscope.findings.rules.tensor_cycle import through_hook
from leakscope.graph.model import IMMORTAL, ObjectKind, ReferenceKind

NAME = RuleName.IMMORTAL_CYCLE


def applies(found: Candidate) -> bool:
    return found.group.freed == IMMORTAL


def hidden_by(found: Candidate) -> str:
    """The C++ reference on the cycle that gc does not follow."""
    cycle = [found.graph.reference(r) for r in (found.group.cycles[0] if found.group.cycles else ())]
    for kinds in (("hook", "saved"), ("grad graph",)):  # what the user's code put there is named before autograd's own
        for reference in cycle:
            holder = found.graph.object(reference.holder)
            if holder.kind == ObjectKind.GRAD_NODE and reference.kind in kinds:
                return f"{reference.name} of {holder.label}"
    return ".grad_fn of a tensor that C++ owns too"


def cure(found: Candidate) -> str:
    """A backward that takes its hooks off again closes no cycle through a node's hook."""
    return "hooks-removed" if through_hook(found) else ""


def title(found: Candidate, cut: str) -> str:
    return f"a cycle through autograd's C++ graph that gc never frees, closed by {cut}"


def advice(found: Candidate, cut: str) -> str:
    cycle = [found.graph.reference(r) for r in (found.group.cycles[0] if found.group.cycles else ())]
    hidden = hidden_by(found)
    if any(r.name == "metadata" for r in cycle):
        todo = "Keep what you need of the tensor (its shape, a detached copy) in the node's metadata, not the tensor itself"
    elif any(r.name == ".grad" for r in cycle):
        todo = f"Cut {cut}, or take the gradient with torch.autograd.grad: one made with create_graph=True and stored on its own parameter closes a cycle"
    elif any(
        r.kind == ReferenceKind.SAVED and found.graph.object(r.held).kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER)
        for r in cycle
    ):
        todo = "Return t.detach() from the pack hook: a pack hook that returns the tensor itself closes a cycle for every operator that saves its output"
    elif any(r.kind == ReferenceKind.HOOK for r in cycle):
        todo = "Let the hook take what it needs through its argument, a detached tensor or a weak reference, or remove its handle after backward"
    else:
        todo = f"Cut {cut}"
    return f"{todo}. gc cannot help: it does not see {hidden}."
