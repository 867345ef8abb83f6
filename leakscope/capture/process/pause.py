"""Pauses the process while it is looked at, and leaves it as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from leakscope.capture.originals import gc

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
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)


@contextmanager
def no_automatic_gc() -> Iterator[None]:
    """Garbage stays until the block is over, unless somebody collects it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
