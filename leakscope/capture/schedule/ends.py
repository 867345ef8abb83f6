"""How did this rank end? Written when it is known, and again where it turns out otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from leakscope.capture.comm.monitor import CommMonitor
from leakscope.capture.device.counters import Counter
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.hang import stack_of_thread
from leakscope.capture.process.watchdog import leave_now
from leakscope.capture.schedule.rank_state import RankStateFile
from leakscope.capture.source.source_files import users_sources, without_source
from leakscope.native import heap_reader
from leakscope.originals import _thread, os
from leakscope.record.ends import orphaned_after
from leakscope.record.folder import RankFolder
from leakscope.record.kinds import EndKind
from leakscope.record.live.rank_states import Activity
from leakscope.record.model import Ended
from leakscope.record.parts.job import Job, job_here
from leakscope.record.rows.clock import RecordingEnded

_LOOK_TIMEOUT_S = 10.0
"""Seconds, chosen, that a look may go on once leakscope's own process is gone."""
HANG_STATUS = 124
"""Exit status of a rank that `--hang-timeout` has ended, as of `timeout`."""


@dataclass(eq=False)
class Ends:
    """Writes `ended.json` and `about.json`, and tells the other ranks."""

    folder: RankFolder
    rank_state: RankStateFile
    counter: Counter
    """What counts the memory of this process."""
    keep_source: bool = True
    """Whether the text of the script's files may stay with the run."""
    job: Job = field(default_factory=lambda: job_here(os.environ))
    """Of which job this rank is, as its launcher says: the script may write into its environment later."""

    def stopped(self, steps: int) -> None:
        """The run is over, for a rank that never gets further than this; the script's own end is written over it."""
        self.rank_state.update(activity=Activity.STOPPING)
        with suppress(OSError):
            self.folder.ended(Ended(EndKind.STOPPED, 0, steps))

    def recording_ended(self, steps: int, why: str) -> None:
        """Nothing more is recorded; the script goes on."""
        self.folder.append(RecordingEnded(steps, why))

    def lost(self) -> None:
        """Nobody is to wait for this rank any more."""
        self.rank_state.update(activity=Activity.LOST)

    def ended(self, ended: Ended) -> None:
        """The script has come to its end, and all the rest is on disk."""
        self.write_about()
        self.folder.ended(ended)
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())

    def leave(self, steps: int, written: bool) -> None:
        """End the process of a rank that is stuck or swallows the stop; `written` where its end is on disk already."""
        try:
            if not written:
                self.folder.ended(Ended(EndKind.STOPPED, 0, steps))
            self.write_about()
            self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())
        finally:
            leave_now(0)

    def orphaned(self, steps: Callable[[], int], looking: _thread.LockType, comm: CommMonitor | None) -> None:
        """Leakscope's own process is gone, and nobody else will tell; the script may go on until this process ends.

        A look that is under way, and holds `looking`, is written first.
        """
        if looking.acquire(timeout=_LOOK_TIMEOUT_S):
            looking.release()
        if comm is not None:
            comm.write_all()
        self.write_about()
        self.folder.ended(orphaned_after(steps()))
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())

    def leave_hung(self, steps: int, timeout_s: float, last_words: str, thread: int) -> None:
        """End the process of a rank whose comm operations have stood still; `thread` is the one whose stack is told."""
        why = f"nothing was sent or received for {timeout_s:g} s; last {last_words or 'nothing at all'}"
        stack = stack_of_thread(thread)
        stack = stack if self.keep_source else without_source(stack)
        self.folder.ended(Ended(EndKind.HUNG, HANG_STATUS, steps, why, stack))
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())
        leave_now(HANG_STATUS)

    def write_about(self) -> None:
        """What only this process knows of the run, for who reads it."""
        about = {
            "device": self.counter.device,
            "counted_by": self.counter.source,
            "torch": str(torch.__version__),
            "heap_reader": heap_reader(),
            "sources": users_sources() if self.keep_source else {},
            "job": vars(self.job),
        }
        self.folder.write("about.json", about)
