"""The verdicts of a run and of memory snapshots."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of a run or of a memory snapshot."""

    CLEAN = "clean"
    LEAKS = "leaks"
    INCONCLUSIVE = "inconclusive"


class Returned(StrEnum):
    """Whose exit status the command that prints the findings returns."""

    OWN = "own"
    """That of the findings."""
    SCRIPTS = "script's"
    """That of the script, even if leaks were found: another launcher started it."""
    NOT = "not"
    """Another one, or there is no command."""
