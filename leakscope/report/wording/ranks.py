"""Sentences about what one rank holds and its peers do not."""

from __future__ import annotations

from leakscope.findings.compare_ranks import RankSkewFacts
from leakscope.findings.model import Finding
from leakscope.units import bytes_text


def skew_title(_finding: Finding, facts: RankSkewFacts) -> str:
    """How much it holds, and what its peers' share would be."""
    largest = f"; the largest holder is {facts.largest}" if facts.largest else ""
    return (
        f"rank {facts.rank} holds {bytes_text(facts.held_bytes)} beside its model where its peers' share would be "
        f"{bytes_text(facts.expected_bytes)}{largest}"
    )


def skew_advice(_finding: Finding, facts: RankSkewFacts) -> str:
    """What to compare."""
    return (
        f"Compare what rank {facts.rank} holds at its last look with a peer's, by category. In a pipeline the first "
        "stages keep more microbatches in flight; the last stage keeps logits, losses and what a logged metric holds."
    )
