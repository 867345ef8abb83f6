"""Pauses garbage collection and other threads during a snapshot, and restores both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from leakscope.originals import FROZEN_BY_PYTHON, _thread, gc
from leakscope.process.guard import CLOCK
from leakscope.process.patches import Patches
from leakscope.run.model import Collection
from leakscope.run.rows import GcFreeze
from leakscope.shield import Block, PureBlock, gc_neutral

_SWITCH_INTERVAL_S = 0.005
"""Switch interval in seconds during a heap snapshot, CPython's default: with a long one a computing thread never
yields, with a very short one the snapshot hardly progresses.
"""


def paused() -> PureBlock[None]:
    """Disable automatic gc and set the default switch interval; both are restored in any case.

    Other threads continue to run.
    """
    interval = sys.getswitchinterval()
    without_gc = no_automatic_gc()

    def enter() -> None:
        without_gc.__enter__()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)

    def leave() -> None:
        try:
            sys.setswitchinterval(interval)
        finally:
            without_gc.__exit__(None, None, None)

    return Block(enter, leave)


class SnapshotTimeout(Exception):
    """Raised when a heap snapshot exceeds its deadline."""


_ends: dict[int, float] = {}
"""Deadline of each thread, on the clock of `time.monotonic`."""


def deadline(seconds: float) -> PureBlock[None]:
    """Set a deadline for this thread: `check_deadline` raises after it."""
    mine = _thread.get_ident()
    before = _ends.get(mine)

    def enter() -> None:
        _ends[mine] = CLOCK.monotonic() + seconds

    def leave() -> None:
        if before is None:
            _ends.pop(mine, None)
        else:
            _ends[mine] = before

    return Block(enter, leave)


def check_deadline() -> None:
    """Check the deadline; called between the parts of a snapshot and inside long loops.

    Raises SnapshotTimeout after the deadline.
    """
    end = _ends.get(_thread.get_ident())
    if end is not None and CLOCK.monotonic() > end:
        raise SnapshotTimeout("it took more than ten times as long as it should have")


_switching = _thread.RLock()
_waiting: set[object] = set()
"""Active blocks of `no_automatic_gc`, of all threads."""
_collecting = False
"""Whether automatic gc was on when the first of them began; False if none is active."""


def no_automatic_gc() -> PureBlock[None]:
    """Disable automatic gc for the block; garbage stays unless somebody collects it.

    Blocks of several threads may overlap: the last to end re-enables automatic gc if it was on.
    """
    block = object()

    def enter() -> None:
        global _collecting  # noqa: PLW0603 - the process has one gc
        with _switching:
            if not _waiting:
                _collecting = gc.isenabled()
            _waiting.add(block)
            gc.disable()

    def leave() -> None:
        global _collecting  # noqa: PLW0603
        with _switching:
            _waiting.discard(block)
            if not _waiting:
                if _collecting:
                    gc.enable()
                _collecting = False

    return Block(enter, leave)


_OLDEST = 2
"""The generation of a full collection (gc.get_count)."""
_MAX_COLLECTIONS = 64
"""Maximum collections reported for one step; full ones and those that freed most are kept."""


def script_freezes() -> bool:
    """Whether the script has called `gc.freeze()`."""
    return gc.get_freeze_count() > FROZEN_BY_PYTHON


def freezing() -> GcFreeze | None:
    """Seconds of a full collection with all objects and with all of them frozen; None if the script itself freezes.

    Changes the program: only where a real gc diff is taken, after it.
    """
    if script_freezes():
        return None
    seconds = []
    for frozen in (False, True):
        if frozen:
            gc.freeze()
        began = CLOCK.perf_counter()
        gc.collect()
        seconds.append(CLOCK.perf_counter() - began)
    gc.unfreeze()
    return GcFreeze(full_seconds=seconds[0], frozen_seconds=seconds[1])


_MAX_WEIGHTS = 4000
"""Objects kept for later release: the first snapshot leaves 3,000 in caches and modules, later ones about 50."""


_ATTENTIVE = 128
"""Young collections before which memory is counted after one that freed something. Heuristic: counting takes longer
than most collections, and most trainings free nothing.
"""


def _young() -> int:
    """The count of gc of objects created since the last young collection."""
    return gc.get_count()[0]


class CollectionWatch:
    """A callback for `gc.callbacks`, inactive while leakscope itself works."""

    def __init__(self, counted: Callable[[], int | None]) -> None:
        self._counted = counted
        self._began: tuple[float, int | None] | None = None
        self._seen: list[Collection] = []
        self.over = False
        """Whether recording of collections has ended."""
        self._own_blocks: set[object] = set()
        self._at_work: set[int] = set()
        """Threads on which leakscope works."""
        self._attentive = _ATTENTIVE
        self._weights: list[dict[Any, Any]] = [{} for _ in range(_MAX_WEIGHTS)]

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """Called by `gc.callbacks` with `start` or `stop` and the result of the collection."""
        if self.over or self._own_blocks:
            return
        if phase == "start":
            # a collection starts by setting the count to 0 (gcmodule.c, gc_collect_main): these no longer count
            self._weights += [{} for _ in range(_MAX_WEIGHTS - len(self._weights))]
            young = info["generation"] < _OLDEST
            self._attentive -= young
            self._began = (CLOCK.perf_counter(), self._counted() if self._attentive >= 0 or not young else None)
            return
        if self._began is None:
            return
        (began, before), self._began = self._began, None
        generation, collected = int(info["generation"]), int(info["collected"])
        if collected:
            self._attentive = _ATTENTIVE
        elif generation < _OLDEST:
            return
        after = None if before is None else self._counted()
        freed = None if before is None or after is None else max(0, before - after)
        self._seen.append(Collection(generation, CLOCK.perf_counter() - began, collected, freed))

    def suspended(self) -> PureBlock[None]:
        """Ignore collections during the block, which leakscope causes; blocks of several threads may overlap.

        Disables automatic gc, so that allocations of leakscope do not free the program's garbage unnoticed.
        """
        block, me = object(), _thread.get_ident()
        is_outermost = me not in self._at_work
        without_gc = no_automatic_gc()
        young: list[int] = []

        def enter() -> None:
            self._own_blocks.add(block)
            if is_outermost:
                self._at_work.add(me)
            without_gc.__enter__()
            young.append(_young())

        def leave() -> None:
            try:
                if is_outermost:
                    self._at_work.discard(me)
                if young:
                    self._restore(young[0])
            finally:
                try:
                    self._own_blocks.discard(block)
                finally:
                    without_gc.__exit__(None, None, None)

        return Block(enter, leave)

    def is_within(self) -> bool:
        """Whether this thread is in such a block, inside which a signal handler of the script may run."""
        return _thread.get_ident() in self._at_work

    def gc_neutral(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that is called within a step and keeps objects; gc's count of young objects is restored."""
        return gc_neutral(function, _young, self._restore)

    def _restore(self, young: int) -> None:
        """Reset gc's count of young objects, so that the program's garbage is freed when it would be without leakscope.

        Each object that gc may track raises the count when created and lowers it when freed (Modules/gcmodule.c,
        gc_alloc and PyObject_GC_Del); an empty dict is not tracked.
        """
        while self._weights and gc.get_count()[0] > young:
            self._weights.pop()
        while len(self._weights) < 2 * _MAX_WEIGHTS and gc.get_count()[0] < young:
            self._weights.append({})

    def taken(self) -> tuple[Collection, ...]:
        """Return the collections since the last call."""
        seen, self._seen = self._seen, []
        if len(seen) > _MAX_COLLECTIONS:
            weightiest = sorted(seen, key=lambda c: (c.generation == _OLDEST, c.freed_bytes or 0), reverse=True)[
                :_MAX_COLLECTIONS
            ]
            seen = [c for c in seen if c in weightiest]
        return tuple(seen)

    def install(self, patches: Patches) -> None:
        """Start recording collections."""
        patches.listen("gc.callbacks", gc.callbacks, self.__call__)
