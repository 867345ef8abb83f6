"""Kinds of rows, snapshots and ends, free of torch."""

from __future__ import annotations

from enum import StrEnum

from leakscope.originals import signal

ORPHAN_STATUS = 128 + signal.SIGTERM
"""Exit status of a rank that is ended because leakscope's own process is gone."""


class MadeBy(StrEnum):
    """What recorded a run."""

    COMMAND = "run"
    """`leakscope run`: there is a command to run again, and an exit status."""
    PROFILER = "profiler"
    CHECK = "check"
    BLOCK = "watch"


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
    ASKED = "asked"
    """Somebody asked, and the step did not end: in the middle of it, on the watchdog's thread."""


class EndKind(StrEnum):
    """How a rank ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """By leakscope, at the end of a --steps run."""
    RAISED = "raised"
    HUNG = "hung"
    """Ended by `--hang-timeout`; it raised nothing."""
    EXITED = "exited"
    KILLED = "killed"
    """By a signal."""
    LOST = "lost"
    """It left no word."""
    RUNNING = "running"
    """It has not ended: it was read while it ran, and no file says so."""
    UNKNOWN = "unknown"
    """What it left of that is damaged; in files it is lost."""


class ClockKind(StrEnum):
    """What ends a step."""

    MARK = "mark"
    """The program's own marks, through `leakscope.Profiler`."""
    FUNCTION = "function"
    """A return of the function of `--step-function`."""
    OPTIMIZER = "optimizer"
    """A step of an optimizer."""
    BACKWARD = "backward"
    """The end of an outermost backward, where no optimizer steps."""
    CALL = "call"
    """The end of an outermost call of a module, where there is no backward."""


class Direction(StrEnum):
    """What a P2P operation does; a collective is named as torch names it."""

    SEND = "send"
    RECV = "recv"


class OperationState(StrEnum):
    """What a rank was doing with its last operation."""

    ISSUED = "issued"
    WAITS = "waits"
    WAITED = "waited"
    FAILED = "failed"


class Phase(StrEnum):
    """The part of a step in which a tensor operation ran."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    NONE = ""
    """No operation of the watched steps."""


class RowTag(StrEnum):
    """Tells the rows of one file apart."""

    STEP = "step"
    IDLE = "idle"
    UNTOUCHED = "untouched"
    ALIKE = "alike"
    DRAG = "drag"
    UNJUDGED = "unjudged"
    NEAR = "near"
    PEER = "peer"
    STARTED = "started"
    READ = "read"
    INSIDE = "inside"
