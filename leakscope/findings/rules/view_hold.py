"""A small view, detached slice or numpy array that keeps a large storage."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import Object, ReferenceKind
from leakscope.units import bytes_text

_LARGER = 2
"""A storage of fewer times what is needed of it is no waste to speak of; chosen."""


@dataclass(frozen=True)
class ViewFacts(Facts):
    """What is held spans a small part of its storage."""

    held: str
    needed_bytes: int
    storage_bytes: int
    by_base: bool
    """It is a view, and holds its base."""

    def title_for(self, finding: Finding) -> str:
        """How little is needed of how large a storage."""
        needed, storage = bytes_text(self.needed_bytes), bytes_text(self.storage_bytes)
        return f"{self.held} in {finding.subject} needs {needed} and keeps a storage of {storage}"

    def advice_for(self, finding: Finding) -> str:
        """How to keep the small part only."""
        if self.by_base:
            return (
                f"Drop the view in {finding.subject}, or keep a .detach().clone() of it: a view holds its base through "
                "._base even when its own .data is replaced."
            )
        return (
            f"Clone what you keep in {finding.subject} (.detach().clone()): a slice shares the whole storage it was "
            "cut from."
        )


def _arrays(candidate: Candidate) -> list[Object]:
    return [o for o in candidate.before_tensor if o.type.endswith(("ndarray", "memoryview"))]


def _sizes(candidate: Candidate) -> tuple[int, int]:
    """(bytes that what is held spans, bytes its storage owns)."""
    spans = [o.size for o in _arrays(candidate) if o.size >= 0]
    return min([*spans, candidate.objects[candidate.tensor_at].size]), candidate.objects[-1].bytes


def _applies(candidate: Candidate) -> bool:
    needed, storage = _sizes(candidate)
    only_memory = all(r.kind == ReferenceKind.MEMORY for r in candidate.references[candidate.tensor_at :])
    return candidate.group.freed == 0 and only_memory and 0 <= needed * _LARGER <= storage


def _facts(candidate: Candidate, _cut: ToCut) -> ViewFacts:
    needed, storage = _sizes(candidate)
    held = next(iter(_arrays(candidate)), candidate.objects[candidate.tensor_at])
    return ViewFacts(held.label, needed, storage, by_base=any(r.name == "._base" for r in candidate.references))


RULE = Rule(RuleName.VIEW_HOLD, "A small view that keeps a large storage.", Match(80, _applies, _facts))
