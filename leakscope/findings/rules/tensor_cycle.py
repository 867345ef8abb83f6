"""Tensors freed only when gc runs: recursive closures, bound methods, stored exceptions, `ctx.attr = output`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.grouping import holds_itself
from leakscope.findings.model import Finding
from leakscope.findings.naming import SEVERAL, is_hook, is_lru_cache
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import Object, ObjectKind, Reference, ReferenceKind
from leakscope.graph.ownership import is_library_line, is_users
from leakscope.units import bytes_text


class Closing(StrEnum):
    """What closes a cycle that gc frees."""

    CLASS = "class"
    """A class created anew each step, which refers to itself."""
    EXCEPTION = "exception"
    RECURSION = "recursion"
    """A function's closure leads straight to a function of the same cycle."""
    HOOK = "hook"
    """A hook of a grad node leads back to the node."""
    CLOSURE = "closure"
    """An object keeps a function that refers to it."""
    CTX = "ctx"
    """An attribute of a grad node keeps its output."""
    METHOD = "method"
    """A bound method is stored on its own instance."""
    GRAD_NODE = "grad node"
    OTHER = "other"


@dataclass(frozen=True)
class MadeClass:
    """A class that is created repeatedly."""

    label: str
    made_in: str
    """The function that makes it; "" where no function does."""
    where: str


@dataclass(frozen=True)
class ClosedOver:
    """The referent of a function's closure."""

    function: str
    variable: str
    held: str
    """Label of the variable's value."""


class CutAt(StrEnum):
    """The kind of a reference to cut, which decides the fix."""

    HOOK = "hook"
    """One of a module's hooks."""
    PATCH = "patch"
    """A function or method that is kept on the object it works on."""
    CLOSURE = "closure"
    ATTRIBUTE = "attribute"
    OTHER = "other"


@dataclass(frozen=True)
class InLibrary:
    """A library's function closes the cycle, which retains an object of the user."""

    package: str
    """`torch`, or the file where the package is not known."""
    function: str
    """The called function of the library."""
    yours: str
    """Label of the first object of the user on the cycle; "" without one."""
    where: str
    captured: str
    """The closure variable that leads on; "" if it is not a closure."""


@dataclass(frozen=True)
class CycleFacts(Facts):
    """A cycle that retains tensors until gc runs."""

    closing: Closing
    made_class: MadeClass | None = None
    closed_over: ClosedOver | None = None
    cut_at: tuple[CutAt, ...] = ()
    """The kind of each reference to cut."""
    library: InLibrary | None = None

    def title_for(self, finding: Finding) -> str:
        """`Reference cycle through ... retains tensors until garbage collection`."""
        made, library = self.made_class, self.library
        if made is not None:
            where = f"in {made.made_in}()" if made.made_in else f"every step{f' ({made.where})' if made.where else ''}"
            text = f"{made.label}, created {where}, retains tensors until garbage collection: a class references itself"
        elif library is not None:
            text = f"Reference cycle {_in_call(library)}"
        else:
            text = f"Reference cycle through {cut_text(finding)} retains tensors until garbage collection"
        if not finding.freed_late:
            return text
        return f"{text} ({bytes_text(finding.bytes_per_step)} of garbage per step, freed late)"

    def advice_for(self, finding: Finding) -> str:
        """How to avoid the cycle, by the kind of its closing reference."""
        cut, closed_over = finding.subject, self.closed_over
        if self.made_class is not None:
            return _of_class(self.made_class, cut)
        if self.library is not None:
            return _of_library(self.library)
        if finding.cut is None:
            return _no_cut(finding)
        if len(self.cut_at) > 1 or CutAt.HOOK in self.cut_at:
            return cut_all(finding, self.cut_at)
        if closed_over is not None:
            return _of_closure(closed_over, cut)
        return {
            Closing.EXCEPTION: "Delete the stored exception after handling it (`del`), or keep str(error): "
            f"{cut} references its traceback, the traceback the frame, and the frame the exception.",
            Closing.RECURSION: "Avoid an inner function that refers to itself: pass it as an argument, move it to "
            f"module level, or use a loop instead of recursion. Cutting {cut} breaks the cycle.",
            Closing.HOOK: "Remove the hook after it has run (handle.remove()), or clear the variables in its "
            f"closure: an autograd node references its hooks, and this one references the node. Cutting {cut} breaks "
            "the "
            "cycle.",
            Closing.CTX: f"Save outputs with ctx.save_for_backward instead of {cut}: an output stored on ctx "
            "references "
            "its own grad_fn.",
            Closing.METHOD: f"Do not store a bound method on its own instance ({cut}): look it up at the call, or "
            "store a weakref.WeakMethod.",
            Closing.GRAD_NODE: f"Drop {cut} after backward: it references itself through a hook, and each "
            "collection frees only one layer.",
        }.get(
            self.closing,
            f"Cut {cut} after its last use, or use a weak reference: nothing else keeps this memory alive.",
        )

    def without_a_cut(self, finding: Finding) -> str:
        """How to avoid a cycle of a class or of a library."""
        if finding.cut is None and self.made_class is not None:
            return f"Create {self.made_class.label} once instead of in each step"
        library = self.library
        if library is None or finding.cut is None or not finding.cut.is_of_library:
            return ""
        call = f"{library.package}'s {library.function}()"
        if library.captured:
            instead = f" instead of the one at {library.where}" if library.where else ""
            return f"Pass {call} a function that does not capture `{library.captured}`{instead}"
        if library.yours:
            where = f" ({library.where})" if library.where else ""
            return f"Do not pass {library.yours}{where} to {call}, or run gc every few steps"
        return f"Run gc every few steps, or avoid {call} in the training step"

    def why_no_cut(self) -> str:
        """Reason for a class that is created in each step."""
        return "no single cut is enough: a class references itself" if self.made_class is not None else ""

    def line_to_edit(self, finding: Finding) -> str | None:
        """The line of the user's function in the cycle of a library."""
        if self.library is None or finding.cut is None or not finding.cut.is_of_library:
            return None
        return self.library.where


def _in_call(library: InLibrary) -> str:
    """`in torch's tree_flatten() retains your function step.<locals>.<lambda> (train.py:26) ...`."""
    call = f"in {library.package}'s {library.function}()"
    if not library.yours:
        return f"{call} retains tensors until garbage collection"
    where = f" ({library.where})" if library.where else ""
    captured = f", which captures {library.captured}," if library.captured else ""
    return f"{call} retains your {library.yours}{where}{captured} until garbage collection"


def _of_library(library: InLibrary) -> str:
    call = f"{library.package}'s {library.function}()"
    why = f"{call} creates a function that refers to itself, so only gc frees it and its arguments."
    if not library.yours:
        return f"{why} Run gc every few steps, or avoid the call in the training step."
    if library.captured:
        return (
            f"{why} Pass it a module-level function, or one that does not capture {library.captured}, instead of "
            f"{library.yours}; or run gc every few steps."
        )
    return f"{why} Do not pass {library.yours} to it, or run gc every few steps."


def _of_class(made: MadeClass, holder: str) -> str:
    instead = f" ({holder})" if holder != SEVERAL else ""
    return (
        f"Create {made.label} once, outside the loop or at module level: a class references itself through its __mro__ "
        "and the descriptors in its __dict__, so only gc frees it and its contents. Or store tensors on instances "
        f"instead of the class{instead}."
    )


def _of_closure(closed_over: ClosedOver, cut: str) -> str:
    return (
        f"Do not store on an object a function that refers to it: the closure of {closed_over.function}() contains "
        f"{closed_over.variable} ({closed_over.held}), which references the function. Pass the object as an argument, "
        f"use weakref.ref, or use a method. Cutting {cut} breaks the cycle."
    )


def _no_cut(finding: Finding) -> str:
    holder = f" {finding.subject} leads from the cycles to the memory." if finding.subject != SEVERAL else ""
    return (
        f"Too many references close the cycles for a small cut.{holder} Clear or delete the referrers after the last "
        "use, or call gc.collect() there."
    )


_HOW = {
    CutAt.HOOK: "For a hook, keep the handle and call handle.remove() after the last use of the module, or register a "
    "function that does not reference the module: it receives the module as an argument.",
    CutAt.PATCH: "For a function stored on the object it refers to, restore the original after the last use (`del` of "
    "the attribute), or use weakref.ref to the object.",
    CutAt.CLOSURE: "For a closure, pass the object as an argument or use weakref.ref.",
    CutAt.ATTRIBUTE: "For an attribute that references back, use weakref.ref, or set it to None after the last use.",
}


_NUMBERS = ("no", "one", "two", "three", "four")


def cut_text(finding: Finding) -> str:
    """`.made of Backward`, or `X and Y (cut both)`."""
    cut = finding.cut
    if cut is None:
        return SEVERAL
    if not cut.also:
        return finding.subject
    names = _listed([reference.written for reference in cut.references])
    many = _NUMBERS[len(cut.references)]
    return f"{names} (cut {'both' if many == 'two' else f'all {many}'})"


def cut_all(finding: Finding, kinds: Sequence[CutAt]) -> str:
    """How to cut each kind of reference, and that all are needed if there are several."""
    cut = finding.cut
    assert cut is not None
    names = _listed([reference.written for reference in cut.references])
    together = f"Cut {names} together: each closes a separate cycle. " if cut.also else ""
    how = [_HOW[kind] for kind in dict.fromkeys(kinds) if kind in _HOW]
    return f"{together}{' '.join(how)}".rstrip() or f"Cut {names} after its last use."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def cycle_of(candidate: Candidate) -> list[Reference]:
    """References of a candidate's first cycle, in order; empty without one."""
    cycles = candidate.group.cycles
    return [candidate.graph.reference(r) for r in (cycles[0] if cycles else ())]


def _through_hook(candidate: Candidate) -> bool:
    """Whether a grad node has a hook that leads back to it."""
    graph = candidate.graph
    return any(
        r.kind == ReferenceKind.HOOK and graph.object(r.holder).kind == ObjectKind.GRAD_NODE
        for r in cycle_of(candidate)
    )


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed > 0


def _class(candidate: Candidate) -> Object | None:
    """The class that refers to itself, if one closes the cycle."""
    cycle = cycle_of(candidate)
    start = cycle[0].holder if cycle else -1
    return candidate.graph.object(start) if start >= 0 and holds_itself(candidate.graph, start) else None


def _recurses(candidate: Candidate) -> bool:
    """Whether a function's closure refers directly to a function of the same cycle: itself, or one that calls it."""
    held = [candidate.graph.object(r.held) for r in cycle_of(candidate) if r.kind == ReferenceKind.CLOSURE]
    return any(o.kind == ObjectKind.FUNCTION or is_lru_cache(o) for o in held)


def _closed_over(candidate: Candidate) -> ClosedOver | None:
    """The first variable of a closure on the cycle."""
    variable = next((r for r in cycle_of(candidate) if r.kind == ReferenceKind.CLOSURE), None)
    if variable is None:
        return None
    function, held = candidate.graph.object(variable.holder), candidate.graph.object(variable.held)
    return ClosedOver(function.name, variable.name.removeprefix("closure "), held.label)


def _closing(candidate: Candidate) -> Closing:
    """What closes a cycle other than a class's."""
    cycle = cycle_of(candidate)
    kinds = {candidate.graph.object(r.holder).kind for r in cycle}
    if kinds & {ObjectKind.EXCEPTION, ObjectKind.TRACEBACK}:
        return Closing.EXCEPTION
    if _recurses(candidate):
        return Closing.RECURSION
    if _through_hook(candidate):
        return Closing.HOOK
    if ObjectKind.FUNCTION in kinds and any(r.kind == ReferenceKind.CLOSURE for r in cycle):
        return Closing.CLOSURE
    if ObjectKind.GRAD_NODE in kinds and any(r.kind == ReferenceKind.ATTRIBUTE for r in cycle):
        return Closing.CTX
    if ObjectKind.METHOD in kinds:
        return Closing.METHOD
    return Closing.GRAD_NODE if ObjectKind.GRAD_NODE in kinds else Closing.OTHER


def kinds_of_cut(candidate: Candidate, references: Sequence[int]) -> tuple[CutAt, ...]:
    """The kind of each of some references."""
    return tuple(_cut_at(candidate, candidate.graph.reference(r)) for r in references)


def _cut_at(candidate: Candidate, reference: Reference) -> CutAt:
    graph = candidate.graph
    held = graph.object(reference.held)
    if is_hook(graph, reference):
        return CutAt.HOOK
    if reference.kind == ReferenceKind.CLOSURE:
        return CutAt.CLOSURE
    if reference.kind != ReferenceKind.ATTRIBUTE:
        return CutAt.OTHER
    calls = held.kind in (ObjectKind.METHOD, ObjectKind.FUNCTION) or held.type == "functools.partial"
    of_node = graph.object(reference.holder).kind == ObjectKind.GRAD_NODE
    return CutAt.OTHER if of_node else CutAt.PATCH if calls else CutAt.ATTRIBUTE


def _in_library(candidate: Candidate) -> InLibrary | None:
    """The library whose lines alone are on the cycle, and what of the user it retains."""
    graph = candidate.graph
    cycle = cycle_of(candidate)
    lines = {graph.object(r.holder).where for r in cycle} - {""}
    function = next((o.name for r in cycle if (o := graph.object(r.holder)).kind == ObjectKind.FUNCTION), "")
    if not function or not lines or not all(map(is_library_line, lines)):
        return None
    package = min(lines).removeprefix("<").partition(">")[0].partition("/")[0]
    called = function.partition(".<locals>")[0]
    places = [k for k, o in enumerate(candidate.objects) if is_users(o)]
    if not places:
        return InLibrary(package, called, "", "", "")
    yours = candidate.objects[places[0]]
    onward = candidate.references[places[0]] if places[0] < len(candidate.references) else None
    captured = onward.name.removeprefix("closure ") if onward and onward.kind == ReferenceKind.CLOSURE else ""
    return InLibrary(package, called, yours.label, yours.where, captured)


def _facts(candidate: Candidate, cut: ToCut) -> CycleFacts:
    made = _class(candidate)
    if made is not None:
        outer, local, _ = made.name.rpartition(".<locals>.")
        made_in = outer.removeprefix("__main__.") if local else ""
        of_class = MadeClass(made.label, made_in, made.where)
        return CycleFacts(Closing.CLASS, of_class)
    closing = _closing(candidate)
    return CycleFacts(
        closing,
        closed_over=_closed_over(candidate) if closing == Closing.CLOSURE else None,
        cut_at=kinds_of_cut(candidate, cut.each),
        library=_in_library(candidate),
    )


HELP = """\
# tensor-cycle

Tensors that are freed only when gc runs.

## What it does

Reports unreachable tensors that are in a reference cycle or referenced by one. Python frees such a cycle at the next
full collection, which can be thousands of steps later, or never if training disables gc.

## Why is this bad?

The tensors await gc in a cycle, such as a recursive closure, a stored exception, or a tensor stored on ctx. They
accumulate if gc is disabled or late.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Linear(256, 256)


def leaves_of(tree):
    leaves = []

    def visit(part):
        if isinstance(part, torch.Tensor):
            leaves.append(part)
        else:
            for inner in part:
                visit(inner)

    visit(tree)
    return leaves


def train_step():
    outputs = (net(torch.randn(64, 256)), [net(torch.randn(64, 256))])
    sum(leaf.square().mean() for leaf in leaves_of(outputs)).backward()


print(leakscope.check(train_step, repeats=3))
```

```console
$ python train.py
```

The trace goes once around the cycle and then to the memory. `freed by` states the number of collections: a cycle
through autograd nodes can lose one layer at a time.

An inner function that calls itself is in a cell of its own closure: function, closure, cell, function. Another cell
references `leaves`, and with it every tensor. gc counts objects and not bytes, so a list of two items that retains
gigabytes does not trigger it. Up to Python 3.13 the oldest generation is collected only after the number of surviving
objects has grown by a quarter.

## Use instead

Cut the closing reference, so that reference counting frees the memory at once.

```diff title="train.py"
 def leaves_of(tree):
-    leaves = []
-
-    def visit(part):
-        if isinstance(part, torch.Tensor):
-            leaves.append(part)
-        else:
-            for inner in part:
-                visit(inner)
-
-    visit(tree)
-    return leaves
+    if isinstance(tree, torch.Tensor):
+        return [tree]
+    return [leaf for part in tree for leaf in leaves_of(part)]
```

```console
$ python train.py
```

A module-level function finds itself in the namespace of the module, which references no data of a step.

Other fixes:

- An exception in a variable references its traceback, the traceback the frame, and the frame the variable: use
  `error.with_traceback(None)`, or store `str(error)`. Python deletes the name after `except ... as error` for this
  reason.
- Use `ctx.save_for_backward(output)` instead of `ctx.output = output`, which closes a cycle through the node.
- Instead of storing a bound method on its own object (`self.forward = self.fast_forward`), define it in the class, or
  use a weak reference.
- For children that reference their parent, use `weakref.ref(parent)`.
- `gc.collect()` after each step hides the problem and visits every object of the process. `gc.freeze()` after the setup
  makes it cheaper, but does not fix it.

## References

[`leakscope.backward.stage_backward_weight`](../reference/backward.md) walks the graph without a recursive closure, and
removes its hooks. This cycle was found in the pipelining backward of torch (pytorch#136507).

- [gc](https://docs.python.org/3/library/gc.html): Python's garbage collector, its generations and thresholds.
"""
RULE = Rule(RuleName.TENSOR_CYCLE, HELP, Match(20, _applies, _facts), is_unintended=True)
