"""Puts the signal handlers back that a launch has changed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

CHANGED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What we and torch's elastic launcher answer while ranks run."""


@contextmanager
def signals_kept() -> Iterator[None]:
    """After the block every handler is the one that was there before."""
    before = {number: signal.getsignal(number) for number in CHANGED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
