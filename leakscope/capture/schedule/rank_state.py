"""Where do the other ranks stand? A small file in the run's folder with one slot for each rank."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

RUNNING, LOOKING, STOPPING, ENDED = range(4)
"""What a rank is doing; it never goes back from STOPPING or ENDED to the ones before."""

_SLOT = struct.Struct("<qqdqq")


@dataclass(frozen=True)
class Slot:
    """What one rank says of itself."""

    steps: int
    """Steps taken; 0 for a rank whose optimizer, if it has one, has not stepped."""
    state: int
    ended: float
    """Seconds since the epoch at which the rank's script ended; 0.0 before."""
    failed: int = 0
    """1 once an allocation has failed here that the script did not catch."""
    answered: int = 0
    """1 once this rank was looked at because of a failed allocation, its own or a peer's."""


class Board:
    """Reads and writes the slots; needs no store, port or process group, and outlives a rank that is killed."""

    def __init__(self, path: Path, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._mine = Slot(0, RUNNING, 0.0)
        self._read: tuple[bytes, tuple[Slot, ...]] = (b"", ())
        self._write()

    @property
    def mine(self) -> Slot:
        return self._mine

    def say(
        self, steps: int | None = None, state: int | None = None, ended: float | None = None,
        failed: bool = False, answered: bool = False,
    ) -> None:  # fmt: skip
        """Change this rank's slot."""
        mine = self._mine
        self._mine = Slot(
            mine.steps if steps is None else steps,
            mine.state if state is None else max(state, mine.state if mine.state >= STOPPING else RUNNING),
            mine.ended if ended is None else ended,
            mine.failed | failed,
            mine.answered | answered,
        )
        self._write()

    def _write(self) -> None:
        if self._file >= 0:
            mine = self._mine
            packed = _SLOT.pack(mine.steps, mine.state, mine.ended, mine.failed, mine.answered)
            os.pwrite(self._file, packed, self._rank * _SLOT.size)

    def slots(self) -> tuple[Slot, ...]:
        """One slot for each rank; this rank's own for all once the board is closed.

        The same tuple as long as nobody says anything new: it is asked for ahead of every operation on the wire.
        """
        if self._file < 0:
            return (self._mine,) * self._world
        data = os.pread(self._file, self._world * _SLOT.size, 0)
        before, slots = self._read
        if data != before:
            slots = _unpack(data, self._world)
            self._read = data, slots
        return slots

    def close(self) -> None:
        file, self._file = self._file, -1  # the watchdog's thread may still ask
        os.close(file)


def _unpack(data: bytes, world: int) -> tuple[Slot, ...]:
    data = data.ljust(world * _SLOT.size, b"\0")[: world * _SLOT.size]
    return tuple(Slot(*fields) for fields in _SLOT.iter_unpack(data))


def all_there(slots: tuple[Slot, ...], steps: int) -> bool:
    """Has every rank that owns an optimizer taken its `steps` steps, or has one already been told to stop?"""
    owners = [slot for slot in slots if slot.steps > 0]
    return any(slot.state == STOPPING for slot in slots) or (
        bool(owners) and all(slot.steps >= steps or slot.state == ENDED for slot in owners)
    )
