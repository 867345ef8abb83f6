"""What has one holder gained over the looks?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Gain:
    """What one container has gained since it was first seen."""

    type: int
    """Address of its type."""
    items: int
    """How many it has."""
    own: int
    """Bytes of the container alone."""
    earlier: float | None = None
    """Bytes of what it had when it was first seen; None before they are measured."""
    gained: int = 0
    """Items that it has more."""
    bytes: float = 0.0
    """Measured, of those."""
    counted: float = 0.0
    """Those of them that malloc's count has."""
    is_of_hooks: bool = False
    """It is a dict of hooks: each one more takes time in every step, however small it is."""
    item: str = ""
    """What the newest ones are called."""
