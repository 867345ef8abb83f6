"""Pauses the process while it is looked at, and leaves it as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from leakscope.capture.process.clock import CLOCK
from leakscope.originals import _thread, gc

_SWITCH_INTERVAL_S = 0.005
"""Seconds that another thread keeps the interpreter during a look, CPython's own default: with a long one a thread that
only computes keeps it for good, with a very short one a look hardly comes to do anything.
"""


@contextmanager
def paused() -> Iterator[None]:
    """Automatic gc off, and threads take turns as by default; both are restored whatever happens.

    Other threads go on meanwhile.
    """
    interval = sys.getswitchinterval()
    with no_automatic_gc():
        try:
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
            yield
        finally:
            sys.setswitchinterval(interval)


class TakesTooLong(Exception):
    """A look should have been over long ago; it is given up."""


_ends: dict[int, float] = {}
"""When what a thread is at is to be given up, on the clock of `time.monotonic`."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Have `go_on` raise in this thread where the block takes longer."""
    mine = _thread.get_ident()
    before = _ends.get(mine)
    _ends[mine] = CLOCK.monotonic() + seconds
    try:
        yield
    finally:
        if before is None:
            del _ends[mine]
        else:
            _ends[mine] = before


def go_on() -> None:
    """To be called between the parts of a look, and where one of them goes over many objects.

    Raises TakesTooLong where the look is to be given up.
    """
    end = _ends.get(_thread.get_ident())
    if end is not None and CLOCK.monotonic() > end:
        raise TakesTooLong("it took more than ten times as long as it should have")


@contextmanager
def no_automatic_gc() -> Iterator[None]:
    """Garbage stays until the block is over, unless somebody collects it."""
    collecting = gc.isenabled()
    try:
        gc.disable()  # a signal handler of the script's may raise right after it
        yield
    finally:
        if collecting:
            gc.enable()
