"""Pauses the process while it is looked at, and leaves it as it was."""

from __future__ import annotations

import sys

from leakscope.capture.process.clock import CLOCK
from leakscope.originals import _thread, gc
from leakscope.shield import Block, PureBlock

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
