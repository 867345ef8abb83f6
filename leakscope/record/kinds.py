"""Why a look was taken and how a rank ended: the words of a record, importable before torch and numpy are."""

from __future__ import annotations

from enum import StrEnum


class Occasion(StrEnum):
    """Why a look was taken."""

    STEP = "step"
    LAST = "last"
    """The end of a --steps run."""
    END = "end"
    """After the script's main code: listed, never judged."""
    PEER = "peer"
    """A rank without an optimizer, when its peers stepped or stopped."""
    BLOCK = "block"
    """The end of a block under `watch`."""
    PEAK = "peak"
    """In the middle of a watched step, where most was alive."""
    MEMORY = "memory"
    """A limit of the host came near, or an allocation failed there."""
    OOM = "oom"
    """An allocation failed on the device."""


class EndKind(StrEnum):
    """How a rank ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """By leakscope, at the end of a --steps run."""
    RAISED = "raised"
    EXITED = "exited"
    KILLED = "killed"
    """By a signal."""
    LOST = "lost"
    """It left no word."""
