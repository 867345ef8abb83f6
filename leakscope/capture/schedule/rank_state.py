"""Where do the other ranks stand? A small file in the run's folder with one record for each rank."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from leakscope.originals import Path, _thread, os
from leakscope.record.descriptors import Descriptor
from leakscope.record.live.rank_states import MARK, RECORD, Activity, RankState, place_of, unpacked
from leakscope.shield import Block, PureBlock


class RankStateFile:
    """Reads and writes the records; needs no store, port or process group, and outlives a rank that is killed."""

    def __init__(self, path: Path, rank: int, world: int) -> None:
        self._path, self._rank, self._world = path, rank, world
        self._mine = RankState(0, Activity.RUNNING, 0.0)
        self._read: tuple[bytes | None, tuple[RankState, ...]] = (None, ())
        self._is_open = True
        self._updating = _thread.RLock()
        """The watchdog's thread changes the record too; and so may a signal handler of the script's, in the middle of a
        change, on the thread that makes it."""
        self._file = self._opened()
        self._write()

    def join(self, path: Path, rank: int, world: int) -> None:
        """Be this rank among so many from now on, in another file; what is said of it stays said."""
        if self._file is not None:
            self._file.close()
        self._path, self._rank, self._world = path, rank, world
        self._read = (None, ())
        self._file = self._opened()
        self._write()

    @property
    def mine(self) -> RankState:
        """What this rank says, as it was written last."""
        return self._mine

    def update(
        self, steps: int | None = None, activity: Activity | None = None, ended: float | None = None,
        failed: bool = False, answered: bool = False, alone: int = 0, look_at: int = 0, spent: float = 0.0,
    ) -> None:  # fmt: skip
        """Change what this rank says."""
        with self._updating:
            while True:
                mine = self._mine
                at_least = mine.activity if mine.activity >= Activity.STOPPING else Activity.RUNNING
                changed = RankState(
                    mine.steps if steps is None else steps,
                    mine.activity if activity is None else max(activity, at_least),
                    mine.ended if ended is None else ended,
                    mine.failed | failed,
                    mine.answered | answered,
                    max(mine.alone, alone),
                    look_at or mine.look_at,
                    max(mine.spent, spent),
                )
                if self._mine is mine:  # no call since: nothing can come between this test and the assignment
                    self._mine = changed
                    break
            self._write()

    def looked_at(self) -> PureBlock[None]:
        """Say that it is looked at while the block runs, and after it whatever happens: its peers may wait for it."""
        return Block(partial(self.update, activity=Activity.LOOKING), partial(self.update, activity=Activity.RUNNING))

    def _write(self) -> None:
        if not self._is_open:
            return
        if not self._is_ours():
            self._file = self._opened()
        if self._file is not None:
            written = None
            while written is not self._mine:  # a signal handler may change it before it is written
                written = self._mine
                with suppress(OSError):  # the disk is full: the peers know no better than before
                    os.pwrite(self._file.number, RECORD.pack(*vars(written).values()), place_of(self._rank))

    def states(self) -> tuple[RankState, ...]:
        """One for each rank; this rank's own for all once the file is closed, and where it is gone.

        The same tuple as long as nobody writes anything new: it is asked for ahead of every comm operation.
        """
        if not self._is_open:
            return (self._mine,) * self._world
        data = self._bytes()
        before, states = self._read
        if data != before:
            if not data.startswith(MARK):  # the script has closed it, and the number is another file's
                self._file = self._opened()
                data = self._bytes()
                if not data.startswith(MARK):
                    return (self._mine,) * self._world
            states = unpacked(data, self._world)
            self._read = data, states
        return states

    def _is_ours(self) -> bool:
        try:  # the mark, for asking the system what file it is takes twice as long
            return self._file is not None and os.pread(self._file.number, len(MARK), 0) == MARK
        except OSError:
            return False

    def _bytes(self) -> bytes:
        try:
            return b"" if self._file is None else os.pread(self._file.number, place_of(self._world), 0)
        except OSError:
            return b""

    def _opened(self) -> Descriptor | None:
        try:
            file = Descriptor(self._path, os.O_RDWR | os.O_CREAT)
            os.pwrite(file.number, MARK, 0)
        except OSError:
            return None
        return file

    def close(self) -> None:
        """Neither read nor write any more; the watchdog's thread may still ask."""
        self._is_open = False
        if self._file is not None:
            self._file.close()


def all_there(states: tuple[RankState, ...], steps: int) -> bool:
    """Has every rank that owns an optimizer taken its `steps` steps, or has one already been told to stop?"""
    owners = [state for state in states if state.steps > 0 and state.activity != Activity.LOST]
    return any(state.activity == Activity.STOPPING for state in states) or (
        bool(owners) and all(state.steps >= steps or state.activity == Activity.ENDED for state in owners)
    )
