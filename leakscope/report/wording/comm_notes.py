"""Sentences about comm operations and contexts that keep no memory a look could see."""

from __future__ import annotations

from leakscope.findings.comm.operations import DroppedFacts, EmptyContextsFacts, OpenPassesFacts
from leakscope.findings.model import Finding

_PLACES_TOLD = 3


def dropped_title(_finding: Finding, facts: DroppedFacts) -> str:
    """How many Works were dropped, and where they were issued."""
    at = f" issued at {facts.issued_at}" if facts.issued_at else ""
    operations = f"{facts.count} {facts.direction} operation{'s' if facts.count != 1 else ''}"
    return f"the Work of {operations}{at} was dropped before anybody waited for it"


def dropped_advice(_finding: Finding, _facts: DroppedFacts) -> str:
    """What a Work is kept for."""
    return (
        "Keep the Work until its wait() has returned, then drop it: until then nobody knows whether the buffer has "
        "crossed, and writing into a buffer that is still being sent, or reading one that is still being received, is "
        "undefined."
    )


def open_passes_title(_finding: Finding, facts: OpenPassesFacts) -> str:
    """How many distributed backwards still run."""
    passes = f"{facts.count} distributed backward pass{'es' if facts.count > 1 else ''}"
    return f"{passes} still running after the step"


def open_passes_advice(_finding: Finding, _facts: OpenPassesFacts) -> str:
    """Where to look for the rank that failed."""
    return (
        "A distributed backward that has failed must leave no pass behind; look at the workers' logs for the rank that "
        "never answered."
    )


def empty_contexts_title(_finding: Finding, facts: EmptyContextsFacts) -> str:
    """How many contexts are open, and who opened them."""
    at = f", opened at {', '.join(facts.opened_at[:_PLACES_TOLD])}" if facts.opened_at else ""
    return f"{facts.count} distributed-autograd contexts left open, without gradients{at}"


def empty_contexts_advice(_finding: Finding, _facts: EmptyContextsFacts) -> str:
    """How to leave a context."""
    return "Leave each context (`with torch.distributed.autograd.context()`): it is released on no worker before."
