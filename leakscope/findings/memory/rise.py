"""Who made and who held what was alive when a test's tensor memory was at its peak?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.findings.memory.oom import HeldThen

MOST_LINES = 8
"""Places and holders told at the most, chosen."""


@dataclass(frozen=True)
class MadeAt:
    """What one line made, of what was alive at the peak."""

    bytes: int
    storages: int
    where: str
    """`train.py:41 forward (aten::addmm)`; "" where nobody saw it being made."""


@dataclass(frozen=True)
class RiseFacts:
    """How high tensor memory rose above what was there when the test began."""

    bytes: int
    allowed_bytes: int
    at: str
    """The operation after which the peak was reached."""
    made: tuple[MadeAt, ...]
    held: tuple[HeldThen, ...]
    returned: tuple[str, int]
    """The operation under way then, and the bytes it was about to return: they had no holder yet."""
    held_bytes: int
    """How much had come when the holders were looked at: the peak, or somewhat less."""
    devices: tuple[tuple[str, int], ...]
    """Bytes by device then."""
