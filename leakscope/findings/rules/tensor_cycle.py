"""Tensors freed only when gc runs: recursive closures, bound methods, stored exceptions, `ctx.attr = output`."""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import holds_itself
from leakscope.findings.model import RuleName
from leakscope.findings.naming.expressions import SEVERAL, is_lru_cache
from leakscope.graph.model import Object, ObjectKind, ReferenceKind

NAME = RuleName.TENSOR_CYCLE


def applies(found: Candidate) -> bool:
    return found.group.freed > 0


def _class(found: Candidate) -> Object | None:
    """The class that holds itself, where one closes the cycle."""
    start = int(found.graph.holder[found.group.cycles[0][0]]) if found.group.cycles and found.group.cycles[0] else -1
    return found.graph.object(start) if start >= 0 and holds_itself(found.graph, start) else None


def recurses(found: Candidate) -> bool:
    """Whether a function's closure leads straight to a function of the same cycle: to itself, or to one that calls it."""
    cycle = [found.graph.reference(r) for r in (found.group.cycles[0] if found.group.cycles else ())]
    held = [found.graph.object(r.held) for r in cycle if r.kind == ReferenceKind.CLOSURE]
    return any(o.kind == ObjectKind.FUNCTION or is_lru_cache(o) for o in held)


def cure(found: Candidate) -> str:
    """The slug of what does without this cycle: which one that is depends on what closes it."""
    return "no-recursive-closure" if recurses(found) else "hooks-removed" if through_hook(found) else ""


def through_hook(found: Candidate) -> bool:
    """Whether a grad node has a hook that leads back to it."""
    cycle = [found.graph.reference(r) for r in (found.group.cycles[0] if found.group.cycles else ())]
    return any(
        r.kind == ReferenceKind.HOOK and found.graph.object(r.holder).kind == ObjectKind.GRAD_NODE for r in cycle
    )


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
    if recurses(found):
        return f"Do not let the inner function refer to itself: pass it as an argument, move it to module level, or loop instead of recursing. Cutting {cut} breaks the cycle."
    if through_hook(found):
        return f"Remove the hook when it has run (handle.remove()), or empty what it closes over: a grad node holds its hooks, and this one leads back to the node. Cutting {cut} breaks the cycle."
    closed_over = next((r for r in cycle if r.kind == ReferenceKind.CLOSURE), None)
    if closed_over is not None and "function" in kinds:
        function, held = found.graph.object(closed_over.holder), found.graph.object(closed_over.held)
        return f"Do not keep on an object a function that refers to it: {function.name}() has {closed_over.name.removeprefix('closure ')} ({held.label}) in its closure, and from there the way leads back to it. Pass the object as an argument, hold it by weakref.ref, or use a method. Cutting {cut} breaks the cycle."
    if "grad node" in kinds and any(r.kind == ReferenceKind.ATTRIBUTE for r in cycle):
        return (
            f"Save outputs with ctx.save_for_backward instead of {cut}: an output stored on ctx holds its own grad_fn."
        )
    if "method" in kinds:
        return f"Do not store a bound method on its own instance ({cut}): look it up when it is called, or keep a weakref.WeakMethod."
    if any(o.kind == ObjectKind.GRAD_NODE for o in holders):
        return f"Drop {cut} as soon as backward has run: it leads through a hook back to itself, and each collection frees only what the last one uncovered."
    return f"Cut {cut} when you are done with it, or hold it weakly: nothing else keeps this alive."
