"""Tensors freed only when gc runs: recursive closures, bound methods, stored exceptions, `ctx.attr = output`."""

from __future__ import annotations

from leakscope.findings.candidate import Candidate
from leakscope.findings.groups import holds_itself
from leakscope.findings.saying import SEVERAL
from leakscope.graph.model import Object

NAME = "tensor-cycle"
CURE = "no-recursive-closure"


def applies(found: Candidate) -> bool:
    return found.group.freed > 0


def _class(found: Candidate) -> Object | None:
    """The class that holds itself, where one closes the cycle."""
    start = int(found.graph.holder[found.group.cycles[0][0]]) if found.group.cycles and found.group.cycles[0] else -1
    return found.graph.object(start) if start >= 0 and holds_itself(found.graph, start) else None


def title(found: Candidate, cut: str) -> str:
    made = _class(found)
    if made is not None:
        return f"{made.label} is made anew in {_maker(made)} and keeps tensors until gc runs: a class holds itself"
    return f"a reference cycle keeps tensors until gc runs, closed by {cut}"


def _maker(made: Object) -> str:
    """The function that makes a class, from the class's qualified name."""
    outer, local, _ = made.name.rpartition(".<locals>.")
    return f"{outer.removeprefix('__main__.')}()" if local else f"each step{f' ({made.where})' if made.where else ''}"


def _instead(cut: str) -> str:
    return f": {cut} is what holds them" if cut != SEVERAL else ""


def advice(found: Candidate, cut: str) -> str:
    made = _class(found)
    if made is not None:
        return f"Make {made.label} once, outside the loop or at module level: its __mro__ and the descriptors in its __dict__ lead back to it, so gc alone frees a class and what it holds. Or keep tensors on instances, never on the class{_instead(cut)}."
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
