"""What is known of one leak beside its figures: each rule has facts of its own, and `report/wording` makes sentences
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What one rule knows of a finding; a rule adds what its sentences need."""

    is_bounded: bool = False
    """What is kept has a bound by design: a note, however it grows."""


@dataclass(frozen=True)
class Said(Facts):
    """A third party's own words, for a leak that `report/wording` has none for."""

    title: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run beside its findings; what finds it out adds what its sentences need."""

    rank: int | None = None
    """None where it is of the whole run."""


@dataclass(frozen=True)
class AliveAtEnd:
    """What was alive when the script's main code had returned."""

    rank: int
    categories: Mapping[str, int]
    """Bytes by what they are for."""


@dataclass(frozen=True)
class Bounded:
    """What gains it has a bound that is not reached yet."""

    items: int
    bound: int
    full_bytes: int
    """What it would hold when full."""


@dataclass(frozen=True)
class EmptiedLater:
    """The source has a line that empties what gains it, and that has not taken effect while it was watched."""

    where: str
    """`train.py:31`."""
    items: int
    """What it has, -1 where that is not known."""
    bound: int | None = None
    """Items above which the line takes effect; None where the source does not show it."""
    every: int | None = None
    """Steps after which it does, where the source shows it."""
    is_decided: bool = True
    """False where the source does not show when it takes effect, so that it may never do."""
    steps: int | None = None
    """Steps of a run that would show it; None where that cannot be told."""
    seen: int = 0
    """Step of the last snapshot, where the run went on to those steps and no snapshot was taken there."""
    full_bytes: int | None = None
    """What it would hold by then."""


@dataclass(frozen=True)
class TooLarge:
    """A bound that is not reached yet, and is no reason to let it grow."""

    bound: Bounded
    holds: str = ""
    """`graphs`, `modules` or `parameters`; "" where it is the bytes that are too many."""
    memory_bytes: int | None = None
    """What there is in all; None where that is not known."""


@dataclass(frozen=True)
class CameToRest:
    """The memory counted after the last look did not go on as it grew."""

    step: int
    """Step of that look."""


@dataclass(frozen=True)
class OnlyTensorsFreed:
    """A forked copy made the cut, and what its grad nodes took is only counted."""

    bytes: int
    """Of tensors that went free."""


@dataclass(frozen=True)
class BufferKind:
    """Buffers of one place, direction and peer."""

    count: int
    direction: str
    """`send`, `recv`, the name of a collective, or `dist_autograd context`."""
    peer: int | None
    tag: int
    issued_at: str


@dataclass(frozen=True)
class CommBuffers:
    """Buffers of P2P and collective operations among what is kept."""

    count: int
    bytes: int
    dead: int
    """Those of them whose Python tensor is dead while the storage is not."""
    kinds: tuple[BufferKind, ...]
    """The commonest first."""
    in_graph: bool = False
    """A tensor of one of them is what a graph has made, or what one begins at."""


@dataclass(frozen=True)
class Beside:
    """Memory of another kind that the same cut frees."""

    bytes: int
    noun: str


@dataclass(frozen=True)
class Upstream:
    """An issue under which the library's developers know the leak."""

    issue: str
    """owner/repository#number."""
    what: str
    """What the library does, as a clause."""
    cure: str = ""
    """What the script can do about it; "" where only the library can."""


@dataclass(frozen=True)
class OpenContextsFacts(Facts):
    """Contexts that nobody has left."""

    count: int
    issued_at: tuple[str, ...]
    """Lines on which the gradients in them were sent."""
    opened_at: tuple[str, ...] = ()
    """Lines that opened contexts, of the whole run."""
    workers: tuple[int, ...] = ()
    """Ids of the workers that took part."""
