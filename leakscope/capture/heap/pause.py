"""Holds the process still while it is looked at, and leaves it as it was."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LONG = 1000.0


@contextmanager
def still() -> Iterator[None]:
    """Automatic gc off and thread switches put off; both are restored whatever happens."""
    interval = sys.getswitchinterval()
    with no_automatic_gc():
        sys.setswitchinterval(_LONG)
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
