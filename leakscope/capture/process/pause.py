"""Pauses the process while it is looked at, and leaves it as it was."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH_INTERVAL_S = 1000.0
"""Seconds that a thread keeps the interpreter while the process is paused, chosen: longer than any look."""


@contextmanager
def paused() -> Iterator[None]:
    """Automatic gc off and thread switches put off; both are restored whatever happens."""
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
