"""Takes a heap snapshot when memory runs short or an allocation failed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from leakscope.process.gc_control import CollectionWatch
from leakscope.process.guard import CLOCK
from leakscope.process.watchdog import Watchdog
from leakscope.recorder.memory_limits import DeviceFailures, more_room
from leakscope.recorder.memory_limits import failure as allocation_failure
from leakscope.recorder.snapshots import SnapshotTaker
from leakscope.recorder.steps.peers import Peers, RankStateFile
from leakscope.run.live import Activity
from leakscope.run.rows import AllocationFailure, LimitNear, Occasion, PeerOutOfMemory
from leakscope.run.writer import RankFolder

_READ_INTERVAL_S = 0.25
"""Seconds between two readings of the limits while memory has not risen: each takes 0.2 ms. Heuristic."""
_READ_RISE_BYTES = 4 << 20
"""Rise in bytes after which they are read earlier: a small part of the remaining memory near a limit. Heuristic."""


@dataclass(eq=False)
class MemoryPressure:
    """Takes a snapshot near a limit, and after a failure on the device, on a peer, or uncaught in the script."""

    folder: RankFolder
    rank_state: RankStateFile
    collections: CollectionWatch
    taker: SnapshotTaker
    failures: DeviceFailures
    peers: Peers
    watchdog: Watchdog
    snapshot: Callable[[int, Occasion], None]
    """Takes a snapshot for a step once no other is in progress."""
    _read_at: float = -math.inf
    _counted_then: int = 0

    def snapshot_if_near_limit(self, step: int, inside: bool, counted: int | None = None) -> None:
        """Take a snapshot if a host limit is near, at the end of a step or `inside` the next one.

        If the `counted` bytes have hardly risen, the limits are not read.
        """
        now, risen = CLOCK.monotonic(), (counted or 0) - self._counted_then
        if counted is not None and risen < _READ_RISE_BYTES and now - self._read_at < _READ_INTERVAL_S:
            return
        self._read_at, self._counted_then = now, counted or 0
        near = self.taker.limits.near()
        if near is None:
            return
        with self.collections.suspended():
            self.folder.append(LimitNear(step, inside, near.limit, near.limit_bytes, near.used_bytes))
            self.snapshot(step, Occasion.MEMORY)

    def snapshot_for_peer(self, step: int, failing: int) -> None:
        """Take a snapshot for another rank whose allocation failed and which waits for it."""
        with self.collections.suspended():
            self.folder.append(PeerOutOfMemory(step, of=failing))
            self.snapshot(step, Occasion.MEMORY)

    def snapshot_device_failure(self, step: int) -> bool:
        """Take a snapshot of a device failure before the stack unwinds, on any thread, unless one is in progress."""
        if not self.taker.lock.acquire(blocking=False):
            return False
        try:
            with self.collections.suspended():
                self.rank_state.update(activity=Activity.SNAPSHOT)
                self.watchdog.extend(self.taker.take(step, Occasion.OOM, False))
                self.rank_state.update(activity=Activity.RUNNING)
        finally:
            self.taker.lock.release()
        return True

    def snapshot_uncaught_failure(self, step: int, error: BaseException | None) -> None:
        """Take a snapshot of a failure that ends the script while its traceback's frames are alive, and wait for the
        peers.
        """
        failed = allocation_failure(error)
        if failed is None:
            return
        self.collections.over = True
        # no room to report it, on disk or here: the script's own error matters
        with suppress(OSError, MemoryError):
            self.rank_state.update(failed=True)
            self.folder.append(AllocationFailure(step=step, time=CLOCK.wall_time(), **failed))
            if type(error) is not torch.OutOfMemoryError or not self.failures.has_snapshot(step):
                with more_room():
                    self.snapshot(step, Occasion.MEMORY)
            self.rank_state.update(answered=True)
            self.peers.wait_for_answers()
