"""Tensors freed only when gc runs: recursive closures, bound methods, stored exceptions, `ctx.attr = output`."""

from __future__ import annotations

from leakscope.findings.candidate import Candidate

NAME = "tensor-cycle"
CURE = "no-recursive-closure"


def applies(found: Candidate) -> bool:
    return found.group.freed > 0


def title(found: Candidate, cut: str) -> str:
    return f"a reference cycle keeps tensors until gc runs, closed by {cut}"


def advice(found: Candidate, cut: str) -> str:
    cycle = [found.graph.reference(r) for r in (found.group.cycles[0] if found.group.cycles else ())]
    holders = [found.graph.object(r.holder) for r in cycle]
    kinds = {o.kind for o in holders}
    if "exception" in kinds or "traceback" in kinds:
        return f"Delete the stored exception when it has been dealt with (`del`, or keep str(error)): {cut} holds its traceback, the traceback holds the frame, and the frame holds the exception."
    if any(o.kind == "function" for o in holders) and any(r.kind == "closure" for r in cycle):
        return f"Do not let the inner function refer to itself: pass it as an argument, move it to module level, or loop instead of recursing. Cutting {cut} breaks the cycle."
    if "grad node" in kinds and any(r.kind == "attribute" for r in cycle):
        return f"Save outputs with ctx.save_for_backward instead of {cut}: an output stored on ctx holds its own grad_fn."
    if "method" in kinds:
        return f"Do not store a bound method on its own instance ({cut}): look it up when it is called, or keep a weakref.WeakMethod."
    if any(o.kind == "grad node" for o in holders):
        return f"Drop {cut} as soon as backward has run: it leads through a hook back to itself, and each collection frees only what the last one uncovered."
    return f"Cut {cut} when you are done with it, or hold it weakly: nothing else keeps this alive."
