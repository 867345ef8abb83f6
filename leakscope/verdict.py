"""The verdicts of a run and of memory snapshots."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What is said of a run or of a memory snapshot."""

    CLEAN = "clean"
    LEAKS = "leaks"
    INCONCLUSIVE = "inconclusive"


class Returned(StrEnum):
    """Whether the command that prints the findings ends with their exit status."""

    OWN = "own"
    """It does."""
    SCRIPTS = "script's"
    """It does, and with the script's whatever is found: another launcher started it."""
    NOT = "not"
    """It ends with another one, or there is no command."""
