"""Sentences about cycles."""

from __future__ import annotations

from leakscope.findings.model import Finding
from leakscope.findings.naming.expressions import SEVERAL
from leakscope.findings.rules.immortal_cycle import ClosedBy, ImmortalFacts
from leakscope.findings.rules.tensor_cycle import Closing, CycleFacts


def cycle_title(finding: Finding, facts: CycleFacts) -> str:
    """`a reference cycle keeps tensors until gc runs, closed by ...`."""
    made = facts.made_class
    if made is not None:
        where = f"{made.made_in}()" if made.made_in else f"each step{f' ({made.where})' if made.where else ''}"
        return f"{made.label} is made anew in {where} and keeps tensors until gc runs: a class holds itself"
    return f"a reference cycle keeps tensors until gc runs, closed by {finding.subject}"


def cycle_advice(finding: Finding, facts: CycleFacts) -> str:
    """How to keep the cycle from closing, by what closes it."""
    cut, made, closed_over = finding.subject, facts.made_class, facts.closed_over
    if made is not None:
        instead = f": {cut} is what holds them" if cut != SEVERAL else ""
        return (
            f"Make {made.label} once, outside the loop or at module level: its __mro__ and the descriptors in its "
            "__dict__ lead back to it, so gc alone frees a class and what it holds. Or keep tensors on "
            "instances, never "
            f"on the class{instead}."
        )
    if closed_over is not None:
        return (
            f"Do not keep on an object a function that refers to it: {closed_over.function}() has "
            f"{closed_over.variable} ({closed_over.held}) in its closure, and from there the way leads back to "
            "it. Pass "
            f"the object as an argument, hold it by weakref.ref, or use a method. Cutting {cut} breaks the cycle."
        )
    return {
        Closing.EXCEPTION: "Delete the stored exception when it has been dealt with (`del`, or keep str(error)): "
        f"{cut} holds its traceback, the traceback holds the frame, and the frame holds the exception.",
        Closing.RECURSION: "Do not let the inner function refer to itself: pass it as an argument, move it to module "
        f"level, or loop instead of recursing. Cutting {cut} breaks the cycle.",
        Closing.HOOK: "Remove the hook when it has run (handle.remove()), or empty what it closes over: a grad node "
        f"holds its hooks, and this one leads back to the node. Cutting {cut} breaks the cycle.",
        Closing.CTX: f"Save outputs with ctx.save_for_backward instead of {cut}: an output stored on ctx holds its own "
        "grad_fn.",
        Closing.METHOD: f"Do not store a bound method on its own instance ({cut}): look it up when it is called, or "
        "keep a weakref.WeakMethod.",
        Closing.GRAD_NODE: f"Drop {cut} as soon as backward has run: it leads through a hook back to itself, and each "
        "collection frees only what the last one uncovered.",
    }.get(facts.closing, f"Cut {cut} when you are done with it, or hold it weakly: nothing else keeps this alive.")


def immortal_title(finding: Finding, _facts: ImmortalFacts) -> str:
    """`a cycle through autograd's C++ graph that gc never frees, closed by ...`."""
    return f"a cycle through autograd's C++ graph that gc never frees, closed by {finding.subject}"


def immortal_advice(finding: Finding, facts: ImmortalFacts) -> str:
    """How to keep the cycle from closing, and which reference gc cannot see."""
    cut = finding.subject
    todo = {
        ClosedBy.METADATA: "Keep what you need of the tensor (its shape, a detached copy) in the node's metadata, not "
        "the tensor itself",
        ClosedBy.GRADIENT: f"Cut {cut}, or take the gradient with torch.autograd.grad: one made with create_graph=True "
        "and stored on its own parameter closes a cycle",
        ClosedBy.PACK_HOOK: "Return t.detach() from the pack hook: a pack hook that returns the tensor itself closes a "
        "cycle for every operator that saves its output",
        ClosedBy.HOOK: "Let the hook take what it needs through its argument, a detached tensor or a weak "
        "reference, or "
        "remove its handle after backward",
        ClosedBy.OTHER: f"Cut {cut}",
    }[facts.closed_by]
    hidden = " of ".join(facts.hidden) if facts.hidden else ".grad_fn of a tensor that C++ owns too"
    return f"{todo}. gc cannot help: it does not see {hidden}."
