"""Why is the verdict what it is, why was something not judged, and why is an object alive?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.facts import EmptiedLater
from leakscope.findings.ledger import Grown
from leakscope.record.model import Ended
from leakscope.record.rows.clock import StartedProcess


class Reason(StrEnum):
    """What decides a verdict."""

    LEAKS = "leaks"
    LEFT_BEHIND = "left behind"
    """A block of code left leaks."""
    NOTHING_RECORDED = "nothing recorded"
    SUPPRESSED = "suppressed"
    """All leaks that were found are known already."""
    CLEAN_BLOCK = "clean block"
    WITHIN_ALLOWANCE = "within allowance"
    """A block can have left no more than it is allowed to, and no look says what it was."""
    NO_STEP = "no step"
    FUNCTION_SILENT = "function silent"
    """The function of --step-function never returned."""
    FUNCTION_MISSING = "function missing"
    """The script neither defined nor imported it."""
    SPAWNED = "spawned"
    """No step was seen in the script's own process, and it started others."""
    RECORDING_ENDED = "recording ended"
    """A rank's recording ended before its script did."""
    KILLED = "killed"
    """A rank was killed before growth could be judged."""
    HUNG = "hung"
    DAMAGED = "damaged"
    """Files that a leak could have been seen in are damaged."""
    HIDDEN = "hidden"
    """What grew may be held by what torch does not show."""
    TOO_FEW_STEPS = "too few steps"
    TOO_FEW_LOOKS = "too few looks"
    """Too few looks saw something grow."""
    NO_LOOKS = "no looks"
    """There were steps enough, and nothing was looked at after any of them."""
    UNBALANCED = "unbalanced"
    """Growth that nothing explains, and of which it cannot be told whether it goes on."""
    NEW_SHAPES = "new shapes"
    """The same, while shapes were new at each look: it may be kernels that are kept for each."""
    NOTHING_GREW = "nothing grew"
    LITTLE_GREW = "little grew"
    """Nothing by enough for a leak."""
    FILLING = "filling"
    """What grows is emptied by a line of the source that has not taken effect yet."""
    BALANCED = "balanced"
    """Every byte of growth stands in a line that is no leak."""


class UnjudgedReason(StrEnum):
    """What keeps a rule from being applied."""

    TOO_FEW_LOOKS = "too few looks"
    NO_STEP = "no step"
    """No step was seen, so the looks are too few."""
    RAISED = "raised"
    """A rule of another package raised."""
    NOT_LOADED = "not loaded"
    """A rule of another package could not be loaded."""
    NO_SOURCE = "no source"
    """Reading the kept source raised: the finding has neither the line that adds to it nor an edit."""


@dataclass(frozen=True, kw_only=True)
class WhyUnjudged:
    """The reason, and what its sentence needs."""

    reason: UnjudgedReason
    looks: int = 0
    """Looks that there were after warm-up."""
    needed: int = 0
    """Looks that growth needs."""
    error: str = ""
    """What was raised: `LookupError: no such thing`."""


class HopReason(StrEnum):
    """Why an object on a trace is alive, or should not be."""

    FUNCTION_RUNS = "function runs"
    MODULE = "module"
    THREAD_RUNS = "thread runs"
    NATIVE = "native"
    """A running call or native code holds it."""
    INTERPRETER = "interpreter"
    ABOVE_CUT = "above cut"
    """A root leads to it, above the reference to cut."""
    ABOVE_LIBRARY = "above library"
    """A root leads to it, above what a library keeps."""
    ONLY_CUT = "only cut"
    """Only the reference to cut keeps it."""
    ONLY_CUTS = "only cuts"
    """Only the references to cut together keep it."""
    MORE_HOLDERS = "more holders"
    """More holds it than one cut lets go of."""
    CYCLE_ITSELF = "cycle itself"
    """It is on a cycle that no root leads to."""
    HELD_BY_CYCLE = "held by cycle"
    STILL_NEEDED = "still needed"
    NOT_USED_AGAIN = "not used again"
    """It is not used again before it is released."""
    KEPT_BY_LIBRARY = "kept by library"
    LEFT_OPEN = "left open"
    """It is a context that was entered and not left."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """The reason, and what its sentence needs."""

    reason: Reason
    count: int = 0
    """Leaks, known ones too, or where there are none notes; of a run that was too short the steps seen, of a rank that
    was killed or hung the looks.
    """
    bytes: int = 0
    """What the leaks hold; of a block without any, what libraries left."""
    bytes_per_step: float = 0.0
    bytes_at_end: int = 0
    """What the leaks hold at the end of the run, extrapolated by the counters; 0 where the last look was the end."""
    full_at_step: int = 0
    """By which memory is full if the leaks go on; 0 where that is not known or far off."""
    rank: int = 0
    """The rank that was killed or hung, whose recording ended, or whose files are damaged."""
    ended: Ended | None = None
    """How that rank ended."""
    is_only_rank: bool = False
    """The run has no other."""
    steps: int = 0
    """Steps that would be enough."""
    detail: str = ""
    """What grew, as the user would write it; the function whose returns should have ended steps; what ended the
    recording; damaged files; the files that say what is known.
    """
    near: tuple[str, ...] = ()
    """Functions of the script whose names are like that of one that is not there."""
    notes: int = 0
    """Notes beside known leaks."""
    emptied: EmptiedLater | None = None
    """What empties `detail`, where that has not taken effect yet."""
    processes: tuple[StartedProcess, ...] = ()
    """Those that the script started, where no step was seen."""
    unjudged: WhyUnjudged | str = ""
    """What there was too little of to judge growth."""
    grown: Grown | None = None
    """What was counted on the rank that grew most; None where nothing was."""
    garbage: int = 0
    """Bytes that waited for gc at the last look, all ranks."""
    horizon: int = 0
    """Steps over which growth was projected; 0 where the user gave a threshold of their own."""
    freed_late: int = 0
    """Bytes a step of the leaks that are made each step, hold as much at each look, and are freed late."""
