"""How is the reserved memory laid out? Fragmentation and private pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from leakscope.allocator.replaying import Chosen
from leakscope.allocator.snapshot import INACTIVE, PENDING_FREE, Blocks, Snapshot


@dataclass(frozen=True)
class Fragmentation:
    """Reserved memory that no tensor uses."""

    inactive_bytes: int
    """Reserved and not active."""
    releasable_bytes: int
    """In segments without any active block: `empty_cache()` gives them back."""
    stuck_bytes: int
    """In segments that an active block keeps: neither returned nor usable for anything larger than its pieces."""
    largest_stuck_bytes: int
    """The largest piece among the stuck ones."""
    rounding_bytes: int
    """What rounding added to the active blocks."""


@dataclass(frozen=True)
class Pool:
    """One memory pool of the allocator."""

    pool: tuple[int, int]
    owner: str
    """`default`, `CUDA graph capture`, or `MemPool or graph pool handle`."""
    segments: int
    reserved_bytes: int
    active_bytes: int
    pending_bytes: int
    peak_bytes: int
    """The most that was alive in it, as requested; without a history, and of the default pool, what is active."""


def fragmentation_of(blocks: Blocks, mine: Chosen) -> Fragmentation:
    """Fragmentation over the blocks `mine` (indexes)."""
    idle = blocks.state[mine] == INACTIVE
    size, segment = blocks.size[mine], blocks.segment[mine]
    in_use = np.isin(segment, segment[~idle])
    stuck = size[idle & in_use]
    return Fragmentation(
        inactive_bytes=int(size[idle].sum()),
        releasable_bytes=int(size[idle & ~in_use].sum()),
        stuck_bytes=int(stuck.sum()),
        largest_stuck_bytes=int(stuck.max(initial=0)),
        rounding_bytes=int((size[~idle] - blocks.requested[mine[~idle]]).sum()),
    )


def pools_of(snapshot: Snapshot, device: int, peaks: Mapping[tuple[int, int], int]) -> tuple[Pool, ...]:
    """The pools of `device`, the default one first; `peaks` are those of the private ones."""
    blocks = snapshot.blocks
    count = len(snapshot.segments)
    active, pending = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(active, blocks.segment, np.where(blocks.state == INACTIVE, 0, blocks.size))
    np.add.at(pending, blocks.segment, np.where(blocks.state == PENDING_FREE, blocks.size, 0))
    requested = np.zeros(count, np.int64)
    np.add.at(requested, blocks.segment, np.where(blocks.state == INACTIVE, 0, blocks.requested))
    members: dict[tuple[int, int], list[int]] = {}
    members.update((pool, []) for pool in peaks if peaks[pool])  # one that is gone by the end too
    for index, segment in enumerate(snapshot.segments):
        if segment.device == device:
            members.setdefault(segment.pool, []).append(index)
    return tuple(
        Pool(
            pool=pool,
            owner=_owner(pool),
            segments=len(indexes),
            reserved_bytes=sum(snapshot.segments[index].total_size for index in indexes),
            active_bytes=int(active[indexes].sum()),
            pending_bytes=int(pending[indexes].sum()),
            peak_bytes=max(peaks.get(pool, 0), int(requested[indexes].sum())),
        )
        for pool, indexes in sorted(members.items())
    )


def _owner(pool: tuple[int, int]) -> str:
    if pool == (0, 0):
        return "default"
    return "CUDA graph capture" if pool[0] else "MemPool or graph pool handle"
