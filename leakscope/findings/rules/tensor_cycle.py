"""Tensors freed only when gc runs: recursive closures, bound methods, stored exceptions, `ctx.attr = output`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.grouping import holds_itself
from leakscope.findings.naming import is_hook, is_lru_cache
from leakscope.findings.rules.rule import OwnRule, ToCut
from leakscope.graph.model import Object, ObjectKind, Reference, ReferenceKind
from leakscope.graph.ownership import is_library_line, is_users


class Closing(StrEnum):
    """What closes a cycle that gc frees."""

    CLASS = "class"
    """A class made anew each step holds itself."""
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
    """A class that is made again and again."""

    label: str
    made_in: str
    """The function that makes it; "" where no function does."""
    where: str


@dataclass(frozen=True)
class ClosedOver:
    """What a function refers to."""

    function: str
    variable: str
    held: str
    """Label of what the variable holds."""


class CutAt(StrEnum):
    """What a reference to cut is, for how to mend it."""

    HOOK = "hook"
    """One of a module's hooks."""
    PATCH = "patch"
    """A function or method that is kept on the object it works on."""
    CLOSURE = "closure"
    ATTRIBUTE = "attribute"
    OTHER = "other"


@dataclass(frozen=True)
class InLibrary:
    """A library's function closes the cycle, an object of the user's is what it keeps."""

    package: str
    """`torch`, or the file where the package is not known."""
    function: str
    """The function of the library that was called."""
    yours: str
    """Label of the first object of the user's that the cycle holds; "" where there is none."""
    where: str
    captured: str
    """The variable in its closure by which it leads on; "" where that is no closure."""


@dataclass(frozen=True)
class CycleFacts(Facts):
    """A cycle that keeps tensors until gc runs."""

    closing: Closing
    made_class: MadeClass | None = None
    closed_over: ClosedOver | None = None
    cut_at: tuple[CutAt, ...] = ()
    """What each of the references to cut is."""
    library: InLibrary | None = None


def cycle_of(candidate: Candidate) -> list[Reference]:
    """References of the first cycle of a candidate, in order; none where there is no cycle."""
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
    """The class that holds itself, where one closes the cycle."""
    cycle = cycle_of(candidate)
    start = cycle[0].holder if cycle else -1
    return candidate.graph.object(start) if start >= 0 and holds_itself(candidate.graph, start) else None


def _recurses(candidate: Candidate) -> bool:
    """Whether a function's closure leads straight to a function of the same cycle: to itself, or to one that calls
    it.
    """
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
    """By what a cycle that is no class's is closed."""
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
    """What each of some references is."""
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
    """The library whose lines alone stand on the cycle, and what of the user's it holds."""
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


RULE = OwnRule(RuleName.TENSOR_CYCLE, 20, "Tensors that are freed only when gc runs.", _applies, _facts)
