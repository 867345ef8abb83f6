"""Buffers of sends, receives and collectives that are kept past their step, by their Work or by whoever has the
tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.comm import CONTEXT, buffers_of, comm_buffers
from leakscope.findings.facts import CommBuffers, Facts, RuleName
from leakscope.findings.rules.rule import OwnRule, ToCut
from leakscope.graph.model import ReferenceKind, RootKind

_SHARE_THRESHOLD = 0.5
"""Share of a group's bytes that its buffers must exceed for it to be about them; chosen."""


class HeldBy(StrEnum):
    """What keeps the buffers."""

    WORK = "work"
    REGISTRY = "registry"
    """torch keeps the Works of functional collectives until somebody waits for them."""
    REGISTRY_AND_PROGRAM = "registry and program"
    """The same, and the program holds the results as well."""
    NATIVE = "native"
    PROGRAM = "program"


@dataclass(frozen=True)
class BufferFacts(Facts):
    """Buffers that are kept past their step."""

    SUMMED = ("buffers",)

    held_by: HeldBy
    buffers: CommBuffers
    waited: bool
    """Somebody has waited for all of their operations."""
    container: str
    """Type of the container that holds them; "" where none does."""


def _by_work(candidate: Candidate) -> bool:
    """Whether a Work holds the first tensor on the way."""
    return any(r.kind == ReferenceKind.COMM for r in candidate.references[: candidate.tensor_at])


def _directly(candidate: Candidate) -> bool:
    """Most of it crossed between two ranks, and no graph or hook stands between the holder and the buffers."""
    if any(
        r.kind in (ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED, ReferenceKind.HOOK) or r.name == "._base"
        for r in candidate.references
    ):
        return False
    buffers = buffers_of(candidate.graph, candidate.group.storages)
    size = sum(int(candidate.graph.bytes[s]) for s, use in buffers.items() if use.direction in ("send", "recv"))
    return size > _SHARE_THRESHOLD * candidate.group.bytes


def _held_natively(candidate: Candidate) -> bool:
    return candidate.objects[0].root == RootKind.NATIVE and candidate.tensor_at == 0


def _nobody_waited(candidate: Candidate) -> bool:
    """Most of it is of collectives that nobody has waited for."""
    waiting = [
        s
        for s, use in buffers_of(candidate.graph, candidate.group.storages).items()
        if use.direction not in (CONTEXT, "send", "recv") and not use.waited
    ]
    return sum(int(candidate.graph.bytes[s]) for s in waiting) > _SHARE_THRESHOLD * candidate.group.bytes


def _by_registry(candidate: Candidate) -> bool:
    return _held_natively(candidate) and _nobody_waited(candidate)


def _by_registry_too(candidate: Candidate) -> bool:
    return any(o.unexplained for o in candidate.objects[candidate.tensor_at :]) and _nobody_waited(candidate)


def _past_their_step(candidate: Candidate) -> bool:
    """Some crossed in a step before the look's; a buffer made anew in each is none that is kept."""
    return any(use.step < candidate.step for use in buffers_of(candidate.graph, candidate.group.storages).values())


def _applies(candidate: Candidate) -> bool:
    return (
        candidate.group.freed == 0
        and _past_their_step(candidate)
        and (_by_work(candidate) or _directly(candidate) or _by_registry(candidate) or _by_registry_too(candidate))
    )


def _held_by(candidate: Candidate) -> HeldBy:
    if _by_work(candidate):
        return HeldBy.WORK
    if _by_registry(candidate):
        return HeldBy.REGISTRY
    if _by_registry_too(candidate):
        return HeldBy.REGISTRY_AND_PROGRAM
    return HeldBy.NATIVE if _held_natively(candidate) else HeldBy.PROGRAM


def _facts(candidate: Candidate, _cut: ToCut) -> BufferFacts:
    graph, storages = candidate.graph, candidate.group.storages
    return BufferFacts(
        _held_by(candidate),
        comm_buffers(graph, storages),
        waited=all(use.waited for use in buffers_of(graph, storages).values()),
        container=candidate.container[1].type if candidate.container else "",
    )


RULE = OwnRule(
    RuleName.P2P_BUFFER, 40, "A send or receive buffer, or its Work, that outlives its step.", _applies, _facts
)
