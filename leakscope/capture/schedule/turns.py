"""Whose turn is it to look? Where a machine has fewer cores than ranks, not all of them look at once."""

from __future__ import annotations

from typing import BinaryIO

from leakscope.capture.process.clock import CLOCK
from leakscope.originals import Path, fcntl, open_file, os
from leakscope.record.descriptors import open_private
from leakscope.record.folder import make_private
from leakscope.shield import Block, PureBlock

_TIMEOUT_S = 10.0
"""Seconds, chosen, after which a rank looks although it is nobody's turn to end."""
_INTERVAL_S = 0.005
"""Seconds between two tries."""


class Turns:
    """As many ranks of this machine look at a time as it has cores.

    They would not be through sooner all at once, and would all need the memory of a look. Who has a turn waits for
    nobody, so it goes on to the next one even where all the others wait in a collective for the one that looks. A lock
    of the kernel's on a file: a rank that is killed gives its turn back.
    """

    def __init__(self, folder: Path, ranks: int, cores: int | None = None) -> None:
        """`ranks` look on this machine; `folder`, which all of them share, is made where there are turns to take."""
        at_once = _cores() if cores is None else cores
        machine = os.uname().nodename  # several may share the folder
        self._files = tuple(folder / f"{machine}_{k}" for k in range(at_once)) if ranks > at_once else ()

    def turn(self) -> PureBlock[None]:
        """Wait for a turn and have it while the block runs; where no file can be locked it is always one's turn."""
        files: list[BinaryIO] = []

        def leave() -> None:
            for file in files:
                if not file.closed:
                    fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has it too
                    file.close()

        return Block(lambda: self._wait(files), leave)

    def _wait(self, locked: list[BinaryIO]) -> None:
        """Lock one of the files, which is the last of `locked` then."""
        if not self._files:
            return
        deadline = CLOCK.monotonic() + _TIMEOUT_S
        while CLOCK.monotonic() < deadline:
            for path in self._files:
                try:
                    make_private(path.parent)
                    locked.append(open_file(path, "ab", buffering=0, opener=open_private))
                except OSError:
                    return
                try:
                    fcntl.flock(locked[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    locked.pop().close()
                except OSError:  # a file system without locks
                    return
                else:
                    return
            CLOCK.sleep(_INTERVAL_S)


def _cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
