"""Tensors freed only when gc runs: recursive closures, bound methods, stored exceptions, `ctx.attr = output`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.facts import Facts
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import holds_itself
from leakscope.findings.kinds import RuleName
from leakscope.findings.naming.expressions import is_lru_cache
from leakscope.findings.rules.rule import OwnRule, ToCut
from leakscope.graph.model import Object, ObjectKind, Reference, ReferenceKind

HOOKS_REMOVED = "hooks-removed"
"""Slug of a backward that takes its hooks off again."""
_NO_RECURSIVE_CLOSURE = "no-recursive-closure"


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


@dataclass(frozen=True)
class CycleFacts(Facts):
    """A cycle that keeps tensors until gc runs."""

    closing: Closing
    made_class: MadeClass | None = None
    closed_over: ClosedOver | None = None


def cycle_of(candidate: Candidate) -> list[Reference]:
    """References of the first cycle of a candidate, in order; none where there is no cycle."""
    cycles = candidate.group.cycles
    return [candidate.graph.reference(r) for r in (cycles[0] if cycles else ())]


def through_hook(candidate: Candidate) -> bool:
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


def _see(candidate: Candidate) -> str:
    """What of leakscope's own backward does without this cycle: which one that is depends on what closes it."""
    return _NO_RECURSIVE_CLOSURE if _recurses(candidate) else HOOKS_REMOVED if through_hook(candidate) else ""


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
    if through_hook(candidate):
        return Closing.HOOK
    if ObjectKind.FUNCTION in kinds and any(r.kind == ReferenceKind.CLOSURE for r in cycle):
        return Closing.CLOSURE
    if ObjectKind.GRAD_NODE in kinds and any(r.kind == ReferenceKind.ATTRIBUTE for r in cycle):
        return Closing.CTX
    if ObjectKind.METHOD in kinds:
        return Closing.METHOD
    return Closing.GRAD_NODE if ObjectKind.GRAD_NODE in kinds else Closing.OTHER


def _facts(candidate: Candidate, _cut: ToCut) -> CycleFacts:
    made = _class(candidate)
    if made is not None:
        outer, local, _ = made.name.rpartition(".<locals>.")
        made_in = outer.removeprefix("__main__.") if local else ""
        return CycleFacts(Closing.CLASS, MadeClass(made.label, made_in, made.where), see=_see(candidate))
    closing = _closing(candidate)
    closed_over = _closed_over(candidate) if closing == Closing.CLOSURE else None
    return CycleFacts(closing, closed_over=closed_over, see=_see(candidate))


RULE = OwnRule(RuleName.TENSOR_CYCLE, 20, "Tensors that are freed only when gc runs.", _applies, _facts)
