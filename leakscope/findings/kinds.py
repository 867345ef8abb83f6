"""The words that a finding is sorted by: its rule, how bad it is, who frees the memory, whose it is."""

from __future__ import annotations

from enum import StrEnum


class RuleName(StrEnum):
    """All rules, in the order in which they are listed; `OWN_RULES` has that in which a storage is offered to them."""

    IMMORTAL_CYCLE = "immortal-cycle"
    TENSOR_CYCLE = "tensor-cycle"
    DIST_AUTOGRAD_CONTEXT = "dist-autograd-context"
    P2P_BUFFER = "p2p-buffer"
    HOOK_PILEUP = "hook-pileup"
    FRAME_HOLD = "frame-hold"
    RETAINED_GRAPH = "retained-graph"
    VIEW_HOLD = "view-hold"
    STEP_GROWTH = "step-growth"
    OBJECT_GROWTH = "object-growth"
    NATIVE_HOLD = "native-hold"
    LATE_RELEASE = "late-release"
    IDLE_MEMORY = "idle-memory"
    RANK_SKEW = "rank-skew"
    ALLOCATOR = "allocator"
    WORKER_GROWTH = "worker-growth"
    WORKER_COPIES = "worker-copies"


class Severity(StrEnum):
    """Whether a finding decides the verdict."""

    LEAK = "leak"
    AVOIDABLE = "avoidable"
    """Memory that lies there for longer than it is needed: never a leak, and no exit status of itself."""
    NOTE = "note"


NOT_JUDGED = 2
"""Exit status of what could not be judged, where that is a failure: as of leakscope's other commands."""


class FreedBy(StrEnum):
    """Who lets the memory go."""

    GC = "gc"
    """Nothing alive holds it: it waits for a collection."""
    PROGRAM = "program"
    """A live root holds it."""
    NEVER = "never"
    """A cycle through C++ that gc cannot see."""


class Origin(StrEnum):
    """Whose leak it is."""

    APPLICATION = "application"
    LIBRARY = "library"


class HopStatus(StrEnum):
    """Whether an object on a trace should be alive."""

    EXPECTED = "expected"
    LEAKED = "leaked"
    UNKNOWN = "unknown"
