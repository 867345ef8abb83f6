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
from leakscope.shield import Block, PureBlock, weightless

_SWITCH_INTERVAL_S = 0.005
"""Seconds that another thread keeps the interpreter during a look, CPython's own default: with a long one a thread that
only computes keeps it for good, with a very short one a look hardly comes to do anything.
"""


def paused() -> PureBlock[None]:
    """Automatic gc off, and threads take turns as by default; both are restored whatever happens.

    Other threads go on meanwhile.
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


class TakesTooLong(Exception):
    """A look should have been over long ago; it is given up."""


_ends: dict[int, float] = {}
"""When what a thread is at is to be given up, on the clock of `time.monotonic`."""


def at_most(seconds: float) -> PureBlock[None]:
    """Have `go_on` raise in this thread where the block takes longer."""
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


def go_on() -> None:
    """To be called between the parts of a look, and where one of them goes over many objects.

    Raises TakesTooLong where the look is to be given up.
    """
    end = _ends.get(_thread.get_ident())
    if end is not None and CLOCK.monotonic() > end:
        raise TakesTooLong("it took more than ten times as long as it should have")


_switching = _thread.RLock()
_waiting: set[object] = set()
"""The blocks of `no_automatic_gc` that run now, of all threads."""
_collecting = False
"""Automatic gc was on when the first of them began; False while there is none."""


def no_automatic_gc() -> PureBlock[None]:
    """Garbage stays until the block is over, unless somebody collects it.

    Blocks of several threads may overlap: the last one that ends turns automatic gc on again, if it was on.
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
"""Most collections told of one step; the full ones and those that freed most stay."""


def script_freezes() -> bool:
    """Whether the script has called `gc.freeze()`."""
    return gc.get_freeze_count() > FROZEN_BY_PYTHON


def freezing() -> GcFreeze | None:
    """Seconds of a full collection with all objects in it and with all left out; None where the script itself freezes.

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
"""Objects kept to be let go of: the first look leaves 3,000 behind in caches and modules, later ones about 50."""


_ATTENTIVE = 128
"""Young collections, chosen, ahead of which memory is counted after one that freed something: to count takes longer
than most of them do, and where none frees anything for so long, as in most trainings, hardly one will.
"""


def _young() -> int:
    """Gc's count of objects made since the last young collection."""
    return gc.get_count()[0]


class CollectionWatch:
    """A callback for `gc.callbacks`; deaf while leakscope itself is at work."""

    def __init__(self, counted: Callable[[], int | None]) -> None:
        self._counted = counted
        self._began: tuple[float, int | None] | None = None
        self._seen: list[Collection] = []
        self.over = False
        """Nothing more is to be noted."""
        self._own_blocks: set[object] = set()
        self._at_work: set[int] = set()
        """Threads on which leakscope is at work."""
        self._attentive = _ATTENTIVE
        self._weights: list[dict[Any, Any]] = [{} for _ in range(_MAX_WEIGHTS)]

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """As `gc.callbacks` calls it: `start` or `stop`, and what the collection found."""
        if self.over or self._own_blocks:
            return
        if phase == "start":
            # collecting begins with setting the count to 0 (gcmodule.c, gc_collect_main): these weigh nothing now
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

    def not_listening(self) -> PureBlock[None]:
        """Collections while the block runs are leakscope's own doing; blocks of several threads may overlap.

        Automatic gc waits: what leakscope allocates must not be what frees the program's garbage, unseen.
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
        """Whether this thread runs such a block: in the middle of it a signal handler of the script's may run."""
        return _thread.get_ident() in self._at_work

    def weightless(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for a function that is called in the middle of a step and keeps some of what it makes."""
        return weightless(function, _young, self._restore)

    def _restore(self, young: int) -> None:
        """Set gc's count of young objects back, so that the program's garbage goes when it would go without us.

        Each object that gc may track raises the count when it is made and lowers it when it goes (Modules/gcmodule.c,
        gc_alloc and PyObject_GC_Del); an empty dict is not even tracked.
        """
        while self._weights and gc.get_count()[0] > young:
            self._weights.pop()
        while len(self._weights) < 2 * _MAX_WEIGHTS and gc.get_count()[0] < young:
            self._weights.append({})

    def taken(self) -> tuple[Collection, ...]:
        """The collections since the last call."""
        seen, self._seen = self._seen, []
        if len(seen) > _MAX_COLLECTIONS:
            weightiest = sorted(seen, key=lambda c: (c.generation == _OLDEST, c.freed_bytes or 0), reverse=True)[
                :_MAX_COLLECTIONS
            ]
            seen = [c for c in seen if c in weightiest]
        return tuple(seen)

    def install(self, patches: Patches) -> None:
        """Listen."""
        patches.listen("gc.callbacks", gc.callbacks, self.__call__)
