"""Where do the ranks of a run stand? One record for each, in a small file of the run's folder while it goes on."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from leakscope.originals import Path, os

NAME = ".board"
"""Of the file, in the run's folder."""


class Activity(IntEnum):
    """What a rank is doing; it never goes back from STOPPING and those after it to the ones before."""

    RUNNING = 0
    LOOKING = 1
    STOPPING = 2
    ENDED = 3
    LOST = 4
    """Its recording has ended, its script goes on: nobody waits for it, and it says no more of its steps."""


RECORD = struct.Struct("<qqdqqqqd")
"""The fields of `RankState`, in their order."""
MARK = b"ranks at"
"""The file begins with it: what does not is another file."""


@dataclass(frozen=True)
class RankState:
    """What one rank says of itself."""

    steps: int
    """Steps taken by the clock that ticks now; 0 for a rank where none does."""
    activity: int
    """One of `Activity`."""
    ended: float
    """Seconds since the epoch at which the rank's script ended; 0.0 before."""
    failed: int = 0
    """1 once an allocation has failed here that the script did not catch."""
    answered: int = 0
    """1 once this rank was looked at because of a failed allocation, its own or a peer's."""
    alone: int = 0
    """Backwards or module calls that would have ended a step here, where no optimizer steps."""
    look_at: int = 0
    """The step after which this rank has asked all to be looked at."""
    spent: float = 0.0
    """Seconds that looking took here so far, with one more look."""


def place_of(rank: int) -> int:
    """Where the record of this rank begins."""
    return len(MARK) + rank * RECORD.size


def unpacked(data: bytes, world: int) -> tuple[RankState, ...]:
    """The records of so many ranks; of one that has written none all zeros."""
    size = place_of(world)
    return tuple(RankState(*fields) for fields in RECORD.iter_unpack(data.ljust(size, b"\0")[len(MARK) : size]))


def read_states(folder: Path, world: int) -> tuple[RankState, ...]:
    """What the ranks of a run say of themselves, by number; none where they say nothing, as after its end."""
    try:
        file = os.open(folder / NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        data = os.pread(file, place_of(world), 0)
    except OSError:
        return ()
    finally:
        os.close(file)
    return unpacked(data, world) if data.startswith(MARK) else ()
