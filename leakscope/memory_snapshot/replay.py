"""Replays the events of a device against the blocks at its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leakscope.memory_snapshot.model import (  # fmt: skip
    ACTIONS,
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    INACTIVE,
    OOM,
    PENDING_FREE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Action,
    Blocks,
    Ints,
    Snapshot,
    Trace,
)

Chosen = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Replay:
    """One device's events as allocations with a birth and a death, and the curves they make."""

    device: int
    events: int
    born: Chosen
    """Event index of each allocation, in order."""
    died: Chosen
    """Event index of its release; `events` for those alive at the end."""
    sizes: Ints
    """Bytes of each allocation."""
    stacks: npt.NDArray[np.int32]
    unknown_frees: Chosen
    """Events that release memory whose allocation the trace does not hold."""
    unknown_sizes: Ints
    ghosts: Chosen
    """Indexes into `Snapshot.blocks`: active blocks whose allocation the trace does not hold."""
    ghost_bytes: int
    unmatched: int
    """Allocations alive in the trace that no active block confirms; 0 in a sound file."""
    pending: Chosen
    """Events that asked for a release which another stream's work held up to the end."""
    curve: Ints
    """Bytes alive after each event, ghosts and memory released by unknown frees included."""
    traced_curve: Ints
    """Bytes alive after each event of those allocations the trace itself holds."""
    pending_curve: Ints
    """Bytes asked to be released and not released after each event."""
    reserved_curve: Ints
    """Bytes reserved from the driver after each event."""
    freed_by: Action | None
    """Which event releases memory: FREE_COMPLETED, FREE_REQUESTED where the other was skipped, None where both were."""
    allocs_recorded: bool
    """False when releases were recorded and allocations were skipped: the curves then say nothing."""

    @property
    def live(self) -> Chosen:
        """Allocations alive at the end."""
        return np.flatnonzero(self.died >= self.events)

    def live_at(self, event: int) -> Chosen:
        """Allocations alive right after `event`."""
        return np.flatnonzero((self.born <= event) & (self.died > event))

    def unknown_at(self, event: int) -> int:
        """Bytes alive right after `event` that only a later release of unknown memory tells of."""
        return int(self.unknown_sizes[self.unknown_frees > event].sum())


def replay(snapshot: Snapshot, device: int) -> Replay:
    """Play back the events of `device` (an index into the traces; a device without a trace has ghosts only)."""
    trace = next((trace for trace in snapshot.traces if trace.device == device), _empty_trace(device))
    blocks, segments = snapshot.blocks, snapshot.segments
    on_device = np.array([segment.device == device for segment in segments], np.bool_)
    mine = np.flatnonzero(on_device[blocks.segment]) if len(blocks) else np.zeros(0, np.intp)
    active = mine[blocks.state[mine] != INACTIVE]
    count, freed_by = len(trace), _releasing_action(trace, blocks, active)
    born, died, unknown = _pair(trace, freed_by)
    sizes = trace.size[born]
    alive = np.flatnonzero(died >= count)
    is_ghost, confirmed = _match(trace.address[born[alive]], sizes[alive], blocks, active)
    if freed_by is None:
        died[alive[~confirmed]] = max(count - 1, 0)
        confirmed = confirmed[confirmed]
    ghosts = active[is_ghost]
    traced_change = np.zeros(count + 1, np.int64)
    np.add.at(traced_change, born, sizes)
    np.subtract.at(traced_change, died, sizes)
    traced = np.cumsum(traced_change[:count])
    lost = np.zeros(count, np.int64)
    lost[unknown] = trace.size[unknown]
    ghost_bytes = int(blocks.requested[ghosts].sum())
    pending, pending_curve = _pending(trace)
    counts = np.bincount(trace.action, minlength=ALLOC + 3)
    return Replay(
        device=device,
        events=count,
        born=born,
        died=died,
        sizes=sizes,
        stacks=trace.stack[born],
        unknown_frees=unknown,
        unknown_sizes=trace.size[unknown],
        ghosts=ghosts,
        ghost_bytes=ghost_bytes,
        unmatched=int((~confirmed).sum()),
        pending=pending,
        curve=traced + ghost_bytes + int(lost.sum()) - np.cumsum(lost),
        traced_curve=traced,
        pending_curve=pending_curve,
        reserved_curve=_reserved(trace, sum(segment.total_size for segment in segments if segment.device == device)),
        freed_by=None if freed_by is None else ACTIONS[freed_by],
        allocs_recorded=not (counts[ALLOC] == 0 and counts[FREE_REQUESTED] + counts[FREE_COMPLETED] > 1),
    )


def _empty_trace(device: int) -> Trace:
    none = np.zeros(0, np.int64)
    index = none.astype(np.int32)
    return Trace(device, none.astype(np.uint8), (), none, none, none, none, none, index, index, index, index, ("",), ())


def _releasing_action(trace: Trace, blocks: Blocks, active: Chosen) -> int | None:
    """`free_completed`; where `skip_actions` (torch 2.11) left it out, `free_requested`; None where both are missing.

    A few requests alone are no sign of skipping when their blocks still wait for another stream.
    """
    if (trace.action == FREE_COMPLETED).any():
        return FREE_COMPLETED
    requested = trace.address[trace.action == FREE_REQUESTED]
    waiting = blocks.address[active[blocks.state[active] == PENDING_FREE]]
    if len(requested) and not np.isin(requested, waiting).all():
        return FREE_REQUESTED
    return FREE_COMPLETED if len(requested) else None


def _pair(trace: Trace, freed_by: int | None) -> tuple[Chosen, Chosen, Chosen]:
    """Births and deaths of the allocations, and the releases without an allocation.

    Addresses are used again and again, so an allocation is paired with the next event at its address.
    """
    count = len(trace)
    counted = trace.action == ALLOC
    if freed_by is not None:
        counted |= trace.action == freed_by
    events = np.flatnonzero(counted)
    order = events[np.argsort(trace.address[events], kind="stable")]
    is_alloc = trace.action[order] == ALLOC
    same = np.zeros(len(order), np.bool_)
    same[1:] = trace.address[order[1:]] == trace.address[order[:-1]]
    after = np.append(order[1:], count)
    next_same = np.append(same[1:], False)
    deaths = np.where(next_same, after, count)
    follows_alloc = same & np.append(False, is_alloc[:-1])
    births = order[is_alloc]
    by_time = np.argsort(births, kind="stable")
    return births[by_time], deaths[is_alloc][by_time], np.sort(order[~is_alloc & ~follows_alloc])


def _match(
    addresses: Ints, sizes: Ints, blocks: Blocks, active: Chosen
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which active blocks are ghosts, and which live allocations an active block confirms."""
    alive = set(zip(addresses.tolist(), sizes.tolist(), strict=True))
    left = list(zip(blocks.address[active].tolist(), blocks.requested[active].tolist(), strict=True))
    there = set(left)
    ghosts = np.array([pair not in alive for pair in left], np.bool_)
    confirmed = [pair in there for pair in zip(addresses.tolist(), sizes.tolist(), strict=True)]
    return ghosts, np.array(confirmed, np.bool_)


def _pending(trace: Trace) -> tuple[Chosen, Ints]:
    """Requested releases not completed by the end, and the bytes in that state after each event.

    A request whose completion is the very next event never waited.
    """
    change = np.zeros(len(trace) + 1, np.int64)
    if not (trace.action == FREE_COMPLETED).any() and (trace.action == FREE_REQUESTED).sum() > 1:
        return np.zeros(0, np.intp), change[:-1]
    events = np.flatnonzero(trace.action <= FREE_COMPLETED)
    order = events[np.argsort(trace.address[events], kind="stable")]
    action = trace.action[order]
    following = np.append(order[1:], len(trace))
    done = np.zeros(len(order), np.bool_)
    done[:-1] = (trace.address[order[1:]] == trace.address[order[:-1]]) & (action[1:] == FREE_COMPLETED)
    requests = action == FREE_REQUESTED
    waited = requests & ~(done & (following == order + 1))
    np.add.at(change, order[waited], trace.size[order[waited]])
    settled = waited & done
    np.subtract.at(change, following[settled], trace.size[order[settled]])
    return np.sort(order[requests & ~done]), np.cumsum(change[:-1])


def _reserved(trace: Trace, at_end: int) -> Ints:
    sign = np.zeros(256, np.int64)
    sign[[SEGMENT_ALLOC, SEGMENT_MAP]] = 1
    sign[[SEGMENT_FREE, SEGMENT_UNMAP]] = -1
    change = sign[trace.action] * trace.size
    return at_end - (int(change.sum()) - np.cumsum(change))


def out_of_memory_events(trace: Trace) -> Chosen:
    """Events at which the device had no memory left."""
    return np.flatnonzero(trace.action == OOM)
