"""Why is the verdict what it is?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """What decides a verdict."""

    LEAKS = "leaks"
    LEFT_BEHIND = "left behind"
    """A block of code left leaks."""
    NOTHING_RECORDED = "nothing recorded"
    CLEAN_BLOCK = "clean block"
    NO_STEP = "no step"
    KILLED = "killed"
    """A rank was killed before growth could be judged."""
    HUNG = "hung"
    TOO_FEW_STEPS = "too few steps"
    TOO_FEW_LOOKS = "too few looks"
    """Too few looks saw something grow."""
    NOTHING_GREW = "nothing grew"
    LITTLE_GREW = "little grew"


@dataclass(frozen=True, kw_only=True)
class Why:
    """The reason, and what its sentence needs."""

    reason: Reason
    count: int = 0
    """Leaks or, where there are none, notes."""
    bytes: int = 0
    """What the leaks hold."""
    bytes_per_step: float = 0.0
    rank: int = 0
    """The rank that was killed or hung."""
    steps: int = 0
    """Steps that it took, or steps that would be enough."""
    detail: str = ""
    """What there was too little of, or what grew, as the user would write it."""
