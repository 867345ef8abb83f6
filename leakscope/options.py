"""What is asked of a recorder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What is asked of a recorder."""

    folder: Path
    """The run's folder."""
    rank: int = 0
    world: int = 1
    steps: int | None = None
    """End the script after this many steps; None lets it run."""
    warmup: int = 2
    budget: float = 0.02
    gc_diff: str = "auto"
    """auto: after the last look of a run that is ended after `steps`; always: also after the script; never."""
    prove: bool = False
    """Cut each blamed reference in a forked copy after the last look of a run with `steps`."""
    lifetimes: bool = True
    """Watch two steps after warm-up under a dispatch mode: what is never used again at the peak."""
    snapshot: str = "auto"
    """On an accelerator: auto keeps snapshots where something was found, always of every look; never records nothing."""
    grace: float = 10.0
    """Seconds a rank has to leave once a run with `steps` is over."""
    hang_timeout: float | None = None
    """Seconds without anything on the wire after which a rank of several is ended as hung; None waits for ever."""
    by_hand: bool = False
    """Steps are marked with `boundary()`; no optimizer is listened to and the script is never stopped."""
