"""What was made, last used and released in the step that was watched storage by storage?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.record.kinds import Phase, RowTag
from leakscope.record.rows.row import Row, Signed


class LifetimeRow(Row):
    """One line of what two watched steps said of the second one's peak."""

    FILE = "lifetimes"


@dataclass(frozen=True)
class WatchedStep(LifetimeRow):
    """The step that was watched storage by storage; operations are counted from its beginning."""

    TAG = RowTag.STEP

    step: int
    device: str
    """`cuda:0`, `cpu`: whose memory was watched."""
    operations: int
    start_bytes: int
    """Alive when the step began."""
    peak_bytes: int
    """Alive when most was."""
    peak_operation: Signed
    """The operation after which the peak was reached, -1 where the step makes nothing."""
    peak_at: str
    """The user's line that ran then, "" where none did."""
    peak_phase: Phase
    backward_follows: bool
    """Whether a backward ran after the peak."""
    unseen_bytes: Signed
    """At the peak, of storages that nobody saw being made or used."""
    arguments: tuple[tuple[str, str], ...]
    """(function, argument) of the user's calls that ran at the peak."""
    curve: tuple[tuple[Signed, int], ...]
    """(operation, bytes alive after it) where they are not far below the peak."""
    storages: int
    """How many the step before made and let go."""
    lag_byte_seconds: float
    """Of those storages: bytes times seconds before the first use."""
    use_byte_seconds: float
    """From the first use to the last."""
    drag_byte_seconds: float
    """After the last use."""
    unread: tuple[tuple[int, str], ...] = ()
    """(index in the heap at the peak of a running function or a script's namespace, reference such as `local ckpt`):
    variables that no code of that function or script reads from there on."""


@dataclass(frozen=True)
class UntouchedStorage(LifetimeRow):
    """A storage that was there before the watched step and the one before it, and that no operation of them touched."""

    TAG = RowTag.UNTOUCHED

    storage: int
    """Its index in the heap at the peak."""


@dataclass(frozen=True)
class StorageLife(LifetimeRow):
    """One storage of the watched step."""

    storage: Signed
    """Its index in the heap at the peak, -1 where it is not there."""
    bytes: int
    made_at: str
    """The line, "" where it was made before the watched steps, as `module` and `phase`."""
    module: str
    """Name of the module in whose forward it was made."""
    phase: Phase
    last_use_at: str
    """The line, "" where nothing but its making used it."""
    last_phase: Phase
    drag_byte_seconds: float
    """Bytes times seconds between the last use and the release."""
    last: Signed
    """The operation that used it last; negative ones were before the step."""
    died: Signed
    """The operation after which it was released."""


@dataclass(frozen=True)
class IdleStorage(StorageLife):
    """A storage that was alive at the peak and not used again."""

    TAG = RowTag.IDLE

    one_statement: bool = False
    """The statement that used it last is the one that ran at the peak."""


@dataclass(frozen=True)
class AlikeStorage(StorageLife):
    """A storage that was made and last used where an idle one was."""

    TAG = RowTag.ALIKE


@dataclass(frozen=True)
class DraggedStorage(StorageLife):
    """One of the storages that lay unused for most byte-seconds; operations are counted from the step before."""

    TAG = RowTag.DRAG


@dataclass(frozen=True)
class LifetimesUnjudged(LifetimeRow):
    """No lifetimes of a step, and why."""

    TAG = RowTag.UNJUDGED

    step: int
    why: str


LIFETIME_ROWS = (WatchedStep, UntouchedStorage, IdleStorage, AlikeStorage, DraggedStorage, LifetimesUnjudged)
"""All kinds of rows of `lifetimes.jsonl`."""
