"""What did a process have that is no tensor memory: descriptors, shared memory, compiled code, pinned memory?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakscope.record.rows.row import Row, rare

OTHERS = "others"
"""Descriptors whose kind was not told apart from the rest."""


@dataclass(frozen=True)
class SharedMemory:
    """Segments of `/dev/shm` that are mapped, of which `torch.multiprocessing` makes one for each tensor it shares."""

    segments: int
    bytes: int


@dataclass(frozen=True)
class Recompiled:
    """A function that `torch.compile` has compiled again."""

    name: str
    """`forward`."""
    at: str
    """`model.py:12`."""
    times: int
    """That a guard of its has failed."""
    reason: str
    """Of the last time, in dynamo's words; "" where it tells none."""


@dataclass(frozen=True)
class Compiled:
    """What dynamo says of itself."""

    functions: int
    """Times that it has compiled one, or a part of one between two graph breaks."""
    again: tuple[Recompiled, ...] = rare(())
    """The most often first."""
    over_limit: bool = rare(False)
    """A function has come to the limit of recompilations and is run without compiling from then on."""


@dataclass(frozen=True)
class CountsAtStep(Row):
    """What was counted at the end of a step; not of every step."""

    FILE = "counts"

    step: int
    descriptors: Mapping[str, int] | None = None
    """Kind of descriptor to their number, leakscope's own left out: `pipe`, `socket to HOST:PORT`, `/tmp/*.log`; None
    where the system does not say.
    """
    most_descriptors: int | None = None
    """That the system lets it have; None for no limit."""
    shared: SharedMemory | None = None
    compiled: Compiled | None = None
    """None where the script has not imported dynamo."""
    pinned_bytes: int | None = rare(None)
    """Pinned host memory that tensors have; None where no device is in use, or torch does not say."""
