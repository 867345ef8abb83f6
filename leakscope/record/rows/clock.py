"""What ended the steps, what ended the recording early, and which processes of its own did the script start?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.record.kinds import ClockKind
from leakscope.record.rows.row import Row, rare


@dataclass(frozen=True)
class StepsBy(Row):
    """What ends a step from here on; the last row of a rank is the one that counts."""

    FILE = "clock"

    clock: ClockKind
    name: str
    """What it is called: `Adam`, `Net`, `Trainer.training_step`; "" where there is nothing to name."""
    since: int = 0
    """Steps that another clock had ended before: they are not judged, and warm-up comes after them."""
    missing: bool = rare(False)
    """There was no function of this name, when the script ended."""


@dataclass(frozen=True)
class RecordingEnded(Row):
    """Recording ended before the script did, for an error of leakscope's own or a folder that cannot be written."""

    FILE = "recording_ended"

    step: int
    """Steps that had ended."""
    why: str
    """`recording ended at step 5: RuntimeError: no such thing (in Work.wait)`."""


@dataclass(frozen=True)
class StartedProcess(Row):
    """A Python process that the script started, which is not seen."""

    FILE = "processes"

    through: str
    """`torch.multiprocessing.spawn`, `multiprocessing`, `subprocess`."""
    started_at: str
    """The user's line: `train.py:41 main`, "" where there is none."""
