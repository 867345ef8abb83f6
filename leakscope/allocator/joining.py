"""Which storage lies in which block of the allocator, and what is left over on either side?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from leakscope.allocator.layout import fragmentation_of
from leakscope.allocator.snapshot import ALLOCATED, INACTIVE, PENDING_FREE, Ints, Snapshot


class Placed(NamedTuple):
    """Where a storage's memory begins."""

    device: int
    address: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Joined:
    """The active blocks of a snapshot, each with the storage in it."""

    blocks: Ints
    """Indexes into `Snapshot.blocks`."""
    storage: Ints
    """For each the place in the list of storages, the first where there are several; -1 where there is none."""
    unplaced: Ints
    """Places in the list of storages that lie in no active block: memory of another allocator."""


def join(snapshot: Snapshot, storages: Sequence[Placed]) -> Joined:
    """Find for each active block the storage whose memory begins in it.

    A block whose release is asked for has no storage any more, whatever begins there.
    """
    blocks = snapshot.blocks
    owner = np.array([segment.device for segment in snapshot.segments], np.int64)
    active = np.flatnonzero(blocks.state != INACTIVE)
    place_of = np.full(len(active), -1, np.int64)
    placed = np.zeros(len(storages), np.bool_)
    device = np.array([storage.device for storage in storages], np.int64)
    address = np.array([storage.address for storage in storages], np.uint64)
    for number in np.unique(device).tolist():
        mine = np.flatnonzero(owner[blocks.segment[active]] == number) if len(active) else active
        theirs = np.flatnonzero(device == number)
        begins = blocks.address[active[mine]].view(np.uint64)
        order = np.argsort(begins, kind="stable")
        mine, begins = mine[order], begins[order]
        ends = begins + blocks.size[active[mine]].astype(np.uint64)
        at = np.searchsorted(begins, address[theirs], "right") - 1
        inside = at >= 0
        inside[inside] = address[theirs][inside] < ends[at[inside]]
        placed[theirs[inside]] = True
        for place, block in zip(theirs[inside].tolist()[::-1], mine[at[inside]].tolist()[::-1], strict=True):
            place_of[block] = place
    place_of[blocks.state[active] == PENDING_FREE] = -1
    return Joined(active, place_of, np.flatnonzero(~placed))


@dataclass(frozen=True)
class DeviceLayout:
    """How one device's memory is used up."""

    device: int
    reserved: int
    active: int
    allocated: int
    pending: int
    rounding: int
    stuck: int
    largest_stuck: int
    releasable: int
    private: int
    """Reserved by pools other than the default one."""


def layouts(snapshot: Snapshot) -> tuple[DeviceLayout, ...]:
    """One row for each device with segments."""
    blocks, segments = snapshot.blocks, snapshot.segments
    owner = np.array([segment.device for segment in segments], np.int64)
    rows = []
    for device in sorted({segment.device for segment in segments}):
        mine = np.flatnonzero(owner[blocks.segment] == device) if len(blocks) else np.zeros(0, np.intp)
        size, state = blocks.size[mine], blocks.state[mine]
        scraps = fragmentation_of(blocks, mine)
        here = [segment for segment in segments if segment.device == device]
        rows.append(
            DeviceLayout(
                device=device,
                reserved=sum(segment.total_size for segment in here),
                active=int(size[state != INACTIVE].sum()),
                allocated=int(size[state == ALLOCATED].sum()),
                pending=int(size[state == PENDING_FREE].sum()),
                rounding=scraps.rounding_bytes,
                stuck=scraps.stuck_bytes,
                largest_stuck=scraps.largest_stuck_bytes,
                releasable=scraps.releasable_bytes,
                private=sum(segment.total_size for segment in here if segment.pool != (0, 0)),
            )
        )
    return tuple(rows)
