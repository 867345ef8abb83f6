"""Which of several is this process, and what do they send each other? Where it was not told, it learns it later."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.capture.comm.monitor import CommMonitor, is_there
from leakscope.capture.looks import Looks
from leakscope.capture.process.hang import STACKS, Stuck
from leakscope.capture.process.patches import Patches
from leakscope.capture.process.watchdog import Stop
from leakscope.capture.schedule.peers import Peers, call_ahead_of_comm
from leakscope.options import Options
from leakscope.originals import Path
from leakscope.record.folder import RankFolder


class Member:
    """What the recorder of one process knows of its place among the others."""

    def __init__(self, options: Options, folder: RankFolder, patches: Patches, peers: Peers, looks: Looks) -> None:
        self._options, self._folder, self._patches = options, folder, patches
        self._peers, self._looks = peers, looks
        self._poll: Callable[..., None] = lambda: None
        self.comm: CommMonitor | None = None
        self.stuck: Stuck | None = None
        self.stop: type[Stop] = Stop
        """What is raised where a run with `steps` is over."""
        self.first_step: Callable[[], object] = lambda: None
        """Called when one is over."""

    def attach(self, poll: Callable[..., None]) -> None:
        """Listen to comm operations, now or once there are others; `poll` is called ahead of each."""
        self._poll = poll
        if self._options.world > 1:
            self._listen()

    def join(self, rank: int, world: int, states: Path) -> None:
        """Be this rank among so many from now on, who say in the file `states` where they stand."""
        self._peers.join(rank, world, states)
        if self.comm is None:
            self._listen()

    def note(self, text: str) -> None:
        """Say something in this process's part of the report."""
        self._folder.note(text)

    def _listen(self) -> None:
        if is_there():
            self.comm = self._looks.comm = CommMonitor(self._folder, self._patches)
            call_ahead_of_comm(self._poll, self._patches)
            self.stuck = Stuck(self._folder.path / STACKS, self._patches, self._options.hang_timeout, self.comm)
