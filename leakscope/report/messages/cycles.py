"""Sentences about cycles."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.findings.model import Finding
from leakscope.findings.naming import SEVERAL
from leakscope.findings.rules.immortal_cycle import ClosedBy, ImmortalFacts
from leakscope.findings.rules.tensor_cycle import ClosedOver, Closing, CutAt, CycleFacts, InLibrary, MadeClass
from leakscope.report.messages.held import cut_in_library
from leakscope.units import bytes_text

_NUMBERS = ("no", "one", "two", "three", "four")


def cycle_title(finding: Finding, facts: CycleFacts) -> str:
    """`a reference cycle keeps tensors until gc runs, closed by ...`."""
    made, library = facts.made_class, facts.library
    if made is not None:
        where = f"{made.made_in}()" if made.made_in else f"each step{f' ({made.where})' if made.where else ''}"
        told = f"{made.label} is made anew in {where} and keeps tensors until gc runs: a class holds itself"
    else:
        closed = f", {_by_library(library)}" if library is not None else _closed_by(finding)
        told = f"a reference cycle keeps tensors until gc runs{closed}"
    if not finding.freed_late:
        return told
    return f"{bytes_text(finding.bytes_per_step)} of garbage made every step, freed late: {told}"


def cycle_advice(finding: Finding, facts: CycleFacts) -> str:
    """How to keep the cycle from closing, by what closes it."""
    cut, closed_over = finding.subject, facts.closed_over
    if facts.made_class is not None:
        return _of_class(facts.made_class, cut)
    if facts.library is not None:
        return _of_library(facts.library)
    if finding.cut is None:
        return _no_cut(finding)
    if len(facts.cut_at) > 1 or CutAt.HOOK in facts.cut_at:
        return _cut_all(finding, facts.cut_at)
    if closed_over is not None:
        return _of_closure(closed_over, cut)
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


def without_a_cut(finding: Finding) -> str:
    """What the script can do about a cycle of which it has no reference to cut, in short; "" for any other."""
    facts = finding.facts
    if not isinstance(facts, CycleFacts):
        return ""
    if finding.cut is None and facts.made_class is not None:
        return f"Make {facts.made_class.label} once instead of in each step"
    library = facts.library
    if library is None or not cut_in_library(finding):
        return ""
    call = f"{library.package}'s {library.function}()"
    if library.captured:
        instead = f" in place of that at {library.where}" if library.where else ""
        return f"Give {call} a function that does not capture `{library.captured}`{instead}"
    if library.yours:
        where = f" ({library.where})" if library.where else ""
        return f"Do not give {call} your {library.yours}{where}, or let gc run every few steps"
    return f"Let gc run every few steps, or do without {call} in the training step"


def immortal_title(finding: Finding, _facts: ImmortalFacts) -> str:
    """`a cycle through autograd's C++ graph that gc never frees, closed by ...`."""
    return f"a cycle through autograd's C++ graph that gc never frees{_closed_by(finding)}"


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
        "reference, or remove its handle after backward",
        ClosedBy.OTHER: f"Cut {cut}",
    }[facts.closed_by]
    if len(facts.cut_at) > 1:
        todo = _cut_all(finding, facts.cut_at).removesuffix(".")
    hidden = " of ".join(facts.hidden) if facts.hidden else ".grad_fn of a tensor that C++ owns too"
    return f"{todo}. gc cannot help: it does not see {hidden}."


def _closed_by(finding: Finding) -> str:
    """`, closed by .made of Backward`, or `; two references close it: X and Y: cut both`."""
    cut = finding.cut
    if cut is None:
        return f", closed by {SEVERAL}"
    if not cut.also:
        return f", closed by {finding.subject}"
    told = _listed([reference.written for reference in cut.references])
    many = _NUMBERS[len(cut.references)]
    return f"; {many} references close it: {told}: cut {'both' if many == 'two' else f'all {many}'}"


def _by_library(library: InLibrary) -> str:
    """`closed by torch's tree_flatten(); your function step.<locals>.<lambda> (train.py:26) is in it, with batch`."""
    closed = f"closed by {library.package}'s {library.function}()"
    if not library.yours:
        return closed
    where = f" ({library.where})" if library.where else ""
    captured = f" and what it captures, {library.captured}" if library.captured else ""
    return f"{closed}: it holds your {library.yours}{where}{captured}"


def _of_library(library: InLibrary) -> str:
    call = f"{library.package}'s {library.function}()"
    why = f"{call} makes a function that refers to itself, so only gc frees that and what it was given."
    if not library.yours:
        return f"{why} Let gc run every few steps, or do without the call in the training step."
    if library.captured:
        return (
            f"{why} Give it a function of module level, or one that does not capture {library.captured}, instead of "
            f"{library.yours}; or let gc run every few steps."
        )
    return f"{why} Do not give it {library.yours}, or let gc run every few steps."


def _of_class(made: MadeClass, holder: str) -> str:
    instead = f": {holder} is what holds them" if holder != SEVERAL else ""
    return (
        f"Make {made.label} once, outside the loop or at module level: its __mro__ and the descriptors in its __dict__ "
        "lead back to it, so gc alone frees a class and what it holds. Or keep tensors on instances, never on the class"
        f"{instead}."
    )


def _of_closure(closed_over: ClosedOver, cut: str) -> str:
    return (
        f"Do not keep on an object a function that refers to it: {closed_over.function}() has {closed_over.variable} "
        f"({closed_over.held}) in its closure, and from there the way leads back to it. Pass the object as an "
        f"argument, hold it by weakref.ref, or use a method. Cutting {cut} breaks the cycle."
    )


def _no_cut(finding: Finding) -> str:
    holder = f" {finding.subject} leads from them to the memory." if finding.subject != SEVERAL else ""
    return (
        f"Too many references close its cycles to name a few that would free it.{holder} Empty or delete what holds "
        "the memory when you are done with it, or call gc.collect() then."
    )


_HOW = {
    CutAt.HOOK: "For a hook, keep the handle that registering it returns and call handle.remove() when you are done "
    "with the module, or register a function that does not hold the module: it is given the module as an argument.",
    CutAt.PATCH: "For a function that is put on the object it works on, put the old one back when you are done "
    "(`del` of the attribute shows the class's own again), or let it hold the object by weakref.ref.",
    CutAt.CLOSURE: "For a closure, pass the object as an argument or hold it by weakref.ref.",
    CutAt.ATTRIBUTE: "For an attribute that leads back, hold the object by weakref.ref, or set it to None when you are "
    "done.",
}


def _cut_all(finding: Finding, kinds: Sequence[CutAt]) -> str:
    """How to cut each kind of the references; that one alone does not do, where there are several."""
    cut = finding.cut
    assert cut is not None
    told = _listed([reference.written for reference in cut.references])
    together = f"Cut {told} together: each closes a cycle of its own. " if cut.also else ""
    how = [_HOW[kind] for kind in dict.fromkeys(kinds) if kind in _HOW]
    return f"{together}{' '.join(how)}".rstrip() or f"Cut {told} when you are done with it."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
