"""A container, attribute, cache, registry or closure on a live root that gains tensors each step."""

from __future__ import annotations

from leakscope.findings.candidate import Candidate

NAME = "step-growth"
CURE = ""


def applies(found: Candidate) -> bool:
    return found.group.freed == 0


def title(found: Candidate, cut: str) -> str:
    return f"{cut} gains tensors each step and lets none go"


def advice(found: Candidate, cut: str) -> str:
    place = found.container
    if place and "dict" in place[1].type.lower():
        return f"Bound {cut} or clear it: each step adds an entry under a new key (an lru_cache(maxsize=...) or one entry per real need)."
    if place:
        return f"Empty {cut} when the step is done with it, keep only what is used again, or give it a bound (collections.deque(maxlen=...))."
    return f"Reset {cut} each step; what it holds is not let go."
