"""What was alive at a moment, by the line that made it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leakscope.allocator.replaying import Chosen, Replay
from leakscope.allocator.sites import UNTRACED, Site, SiteBytes, callers_of, sites_of
from leakscope.allocator.snapshot import NO_FRAMES, Indexes, Ints, Snapshot, Stack, Trace


@dataclass(frozen=True, eq=False)
class Places:
    """The site of each stack of a snapshot."""

    of: tuple[Site, ...]
    """In the order of `stacks`."""
    stacks: tuple[Stack, ...]
    frames: int
    """Frames of the user's to be told of each place, the place itself among them."""

    def callers(self, stack: int) -> tuple[str, ...]:
        """The user's frames that led to a stack's place."""
        return callers_of(self.stacks[stack], self.frames - 1) if self.frames > 1 else ()


def places_of(snapshot: Snapshot, frames: int) -> Places:
    """The places of a snapshot; `frames` is `--frames`."""
    return Places(sites_of(snapshot.stacks), snapshot.stacks, frames)


def end_stacks(snapshot: Snapshot, played: Replay, trace: Trace | None, active: Chosen) -> tuple[Indexes, Ints]:
    """Stack and requested bytes of every active block; a block without a stack takes that of its allocation event."""
    blocks = snapshot.blocks
    stacks = blocks.stack[active].copy()
    bare = np.flatnonzero(stacks <= NO_FRAMES)
    if len(bare) and trace is not None:
        live = played.live
        made = dict(zip(trace.address[played.born[live]].tolist(), played.stacks[live].tolist(), strict=True))
        stacks[bare] = [
            made.get(address, old)
            for address, old in zip(blocks.address[active[bare]].tolist(), stacks[bare].tolist(), strict=True)
        ]
    return stacks, blocks.requested[active]


def alive_at(snapshot: Snapshot, played: Replay, sites: Places, event: int) -> tuple[SiteBytes, ...]:
    """What was alive right after `event` by site: traced allocations, ghosts, and what only its later release tells
    of.
    """
    alive = played.live_at(event)
    blocks = snapshot.blocks
    stacks = np.concatenate([played.stacks[alive], blocks.stack[played.ghosts]])
    sizes = np.concatenate([played.sizes[alive], blocks.requested[played.ghosts]])
    held = by_site(sites, stacks, sizes)
    untraced = played.unknown_at(event)
    if untraced:
        more = SiteBytes(UNTRACED, untraced, int((played.unknown_frees > event).sum()))
        held = tuple(sorted((*held, more), key=_largest_first))
    return held


def by_site(sites: Places, stacks: Indexes, sizes: Ints) -> tuple[SiteBytes, ...]:
    """Bytes and number of allocations by site, the largest first."""
    width = len(sites.of)
    counts = np.bincount(stacks, minlength=width)
    sums = np.zeros(width, np.int64)
    np.add.at(sums, stacks, sizes)
    total: dict[Site, tuple[int, int]] = {}
    most: dict[Site, tuple[int, int]] = {}
    for stack in np.flatnonzero(counts).tolist():
        site, made = sites.of[stack], int(sums[stack])
        before = total.get(site, (0, 0))
        total[site] = (before[0] + made, before[1] + int(counts[stack]))
        most[site] = max(most.get(site, (-1, stack)), (made, stack))
    held = [SiteBytes(site, size, count, sites.callers(most[site][1])) for site, (size, count) in total.items()]
    return tuple(sorted(held, key=_largest_first))


def _largest_first(entry: SiteBytes) -> tuple[int, Site]:
    return (-entry.bytes, entry.site)
