"""What has a rank answered to those that asked for a look?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.record.kinds import Occasion
from leakscope.record.rows.row import Row, rare


@dataclass(frozen=True)
class Answer(Row):
    """A look that was taken after somebody had asked for one; it answers all that were asked before it."""

    FILE = "answers"

    asked: int
    """Number of the last request that it answers."""
    step: int
    """Steps that had ended."""
    occasion: Occasion
    time: float
    """Seconds since the epoch at which it was there."""
    seconds: float
    """What the look took."""
    stacks: tuple[str, ...] = rare(())
    """Lines of the stacks of all threads, where the look was taken in the middle of a step."""
