"""What is said in the end, of a live run and of the allocator's files alike?"""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What is said of a run or of a memory snapshot."""

    CLEAN = "clean"
    LEAKS = "leaks"
    INCONCLUSIVE = "inconclusive"
