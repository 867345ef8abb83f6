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
    collecting = gc.isenabled()
    interval = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(_LONG)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if collecting:
            gc.enable()
